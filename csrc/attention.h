// The input and output of one task of suffix attention, for every instruction set.
#pragma once

#include <cstdint>

namespace LSP_NAMESPACE {

constexpr int64_t QUERIES = 128;       // rows of the largest task; a row is one query head of one token
constexpr int64_t KEYS = 128;          // keys that are scored before their values are added up
constexpr int64_t LARGEST_SIZE = 256;  // of a head

// Consecutive keys and values, of the cache or of the pass; strides in elements.
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
  float scale;                    // absolute value of the factor of the scores, times log2 e
  bool negative;                  // whether that factor is negative
  Segment<T> segments[2];         // of the frozen prefix, and of the pass
};

// The result of a task: the weighted sum of the values, [rows, size], and per row the largest scaled score and the sum of
// the weights.
struct Found {
  float *values, *most, *total;
};

}  // namespace LSP_NAMESPACE
