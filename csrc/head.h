// The input of one task of the LM head, for every instruction set: rows of hidden states against a range of the vocabulary.
#pragma once

#include "top2.h"

#include <cstdint>
#include <vector>

namespace LSP_NAMESPACE {

constexpr int64_t ROWS_AT_ONCE = 256;  // rows of a task
constexpr int64_t GRAIN_OF_IDS = 512;  // a range of the vocabulary is a multiple of it

// A logit is a sum of sums of DEPTH products: so many values of a panel of rows and of a tile of ids fit the L1 cache.
constexpr int64_t DEPTH = 256;

// Rows are put side by side in chunks of the hidden size. If they are small, they are one chunk, which all tasks share, and
// logits are turned into statistics IDS at a time. Else there are several chunks; each task makes them for itself, one after
// the other, and keeps its logits so far, so that memory stays small.
constexpr int64_t CHUNK = 256, IDS = 48;
inline bool one_chunk(int64_t count, int64_t size) { return size <= 1024 || count * size <= 1 << 16; }

// `W` is T, or int8_t for a weight whose rows are multiplied by a scale afterwards.
template <class T, class W = T>
struct Product {
  const T* const* rows;  // hidden states
  int64_t count;         // how many rows
  const float* packed;   // the rows side by side if they are one chunk, or nullptr
  const W* weight;       // of id 0
  int64_t stride;        // from id to id
  const T* bias;         // per id, or nullptr
  int64_t size;          // of a row
  int64_t begin, end;    // ids
};

// What the statistics of a task need to know.
struct Scoring {
  const Suppressed& suppressed;
  const RowNoise* noise;  // per row, or nullptr
  int64_t id_offset;      // the noise of an id is that of id_offset + id
  Want want;
};

// The memory of one thread. It is kept from call to call.
struct HeadMemory {
  std::vector<float> hidden;   // a chunk of all rows, side by side
  std::vector<float> weights;  // some values of IDS ids, converted
  std::vector<float> logits;   // of all rows and some ids, so far
  std::vector<float> state;    // per row: the two largest logits, the id of the first, and more
  std::vector<uint32_t> keys;  // per row: what its noise is made of
};

}  // namespace LSP_NAMESPACE
