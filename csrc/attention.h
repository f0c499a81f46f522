// What a task of suffix attention is given, whatever the instruction set.
#pragma once

#include <cstdint>

namespace lsp {

constexpr int64_t QUERIES = 128;  // rows of a task at most; a row is one query of one head of the group
constexpr int64_t KEYS = 128;     // keys that are scored before their values are added up
constexpr int64_t LARGEST_SIZE = 256;

// Keys and values in order, from the cache or from the pass; strides in elements.
template <class T>
struct Segment {
  const T *k, *v;
  int64_t k_stride, v_stride, count;
};

template <class T>
struct Block {
  const T* q;
  int64_t q_token, q_head;        // strides
  int64_t group, first, rows;     // row i is head (first + i) % group of token (first + i) / group
  int64_t size;                   // of a head
  float scale;                    // of the scores, times log2 e: its size
  bool negative;                  // and its sign
  Segment<T> segments[2];         // of the frozen prefix, and of the pass
};

// What a task has found of its rows: [rows, size] weighted values and, per row, the largest scaled score and the weights' sum.
struct Found {
  float *values, *most, *total;
};

}  // namespace lsp
