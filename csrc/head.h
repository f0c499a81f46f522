// The input of one task of the LM head, for every instruction set: rows of hidden states against a range of the vocabulary.
#pragma once

#include "top2.h"

#include <cstdint>
#include <vector>

namespace LSP_NAMESPACE {

constexpr int64_t ROWS_AT_ONCE = 256;  // rows of a task
constexpr int64_t GRAIN_OF_IDS = 512;  // a range of the vocabulary is a multiple of it

// A hidden size of up to WHOLE is one chunk: then logits stay in registers, and a task may have many ids, for which the
// rows are put side by side once. A larger one has several, and the logits of the task so far are kept.
constexpr int64_t WHOLE = 1024, CHUNK = 512;
inline int64_t depth_of(int64_t size) { return size <= WHOLE ? size : CHUNK; }
inline int64_t ids_of(int64_t size) { return size <= WHOLE ? 2048 : 512; }

template <class T>
struct Product {
  const T* const* rows;  // hidden states
  int64_t count;         // how many rows
  const T* weight;       // of id 0
  int64_t stride;        // from id to id
  const T* bias;         // per id, or nullptr
  int64_t size;          // of a row
  int64_t begin, end;    // ids
  const Suppressed& suppressed;
};

// The memory of one thread. It is kept from call to call.
struct HeadMemory {
  std::vector<float> hidden;   // a chunk of all rows, side by side
  std::vector<float> weights;  // a chunk of a tile of ids, converted
  std::vector<float> logits;   // of all rows and ids of the task, so far
  std::vector<float> state;    // per row: the two largest logits, the id of the first, and more
};

}  // namespace LSP_NAMESPACE
