// The input of one task of the LM head, for every instruction set: rows of hidden states against a range of the vocabulary.
#pragma once

#include "top2.h"

#include <cstdint>
#include <vector>

namespace LSP_NAMESPACE {

constexpr int64_t IDS = 512;            // ids of a task
constexpr int64_t DEPTH = 256;          // products that are added one after the other; a logit is a sum of such sums
constexpr int64_t ROWS_AT_ONCE = 256;   // rows of a task

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
