// The two largest logits of a row and, for the log-odds, the weight of all but the best, in one read of the row.
//
// A block is first reduced to its maximum. Only a block whose maximum exceeds the second best so far can change the two
// largest; a row has few of them, and they are read again while they are in the L1 cache.
#pragma once

#include "types.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace LSP_NAMESPACE {

constexpr int BLOCK = 512;
constexpr float HIGHEST_LOG_ODDS = 80.0f;

// Suppressed ids, sorted, and the lowest id that is not among them, for rows without a logit above -inf.
struct Suppressed {
  const int32_t* ids = nullptr;
  int64_t count = 0;
  int64_t lowest = 0;
};

inline double exp_of_difference(float a, float b) { return a == b ? 1.0 : std::exp(double(a) - double(b)); }

// What is known of some consecutive logits of a row.
struct Top2 {
  float first = -INFINITY, second = -INFINITY;
  bool nan = false;
  int64_t token = 0;
  double sum = 0;  // of e^(z_j - second) over all j but the best; kept with REST only

  float margin() const { return nan ? NAN : first == second ? 0.0f : first - second; }

  // log(p / (1 - p)) of the best token: minus the log of the sum of e^(z_j - first) over the `others`, which are the ids
  // that are neither suppressed nor the best.
  float log_odds(int64_t others) const {
    if (nan) return NAN;
    if (others == 0) return INFINITY;
    if (second == -INFINITY) return first == -INFINITY ? float(0.0 - std::log(double(others))) : HIGHEST_LOG_ODDS;
    const double above = first == second ? 0.0 : double(first) - double(second);
    return std::min(float(above - std::log(sum)), HIGHEST_LOG_ODDS);
  }
};

// Joins `right`, which follows `left` in the row. Of equal values the lower id wins, hence the left one.
template <bool REST>
inline void merge(Top2& left, const Top2& right) {
  const float loser = std::min(left.first, right.first);
  const float second = std::max({left.second, right.second, loser});
  if (REST) {
    left.sum = left.sum * exp_of_difference(left.second, second) + right.sum * exp_of_difference(right.second, second) +
               exp_of_difference(loser, second);
  }
  left.second = second;
  left.nan |= right.nan;
  if (right.first > left.first) {
    left.first = right.first;
    left.token = right.token;
  }
}

// Whether anything in the block is above the bound or NaN; if not, and with REST, `sum` becomes the sum of e^(x - bound).
// With an infinite bound that difference does not exist: with -inf the sum is 0, with +inf it counts the values +inf.
template <class Blocks, bool REST, class T>
inline bool exceeds(const T* x, int n, float bound, double& sum) {
  sum = 0;
  if (REST && std::isfinite(bound)) return Blocks::exceeds(x, n, bound, sum);
  if (REST && bound == INFINITY) sum = double(std::count_if(x, x + n, [](T value) { return to_float(value) == INFINITY; }));
  return Blocks::exceeds(x, n, bound);
}

// Copies a block as float32, with -inf for suppressed ids, padded with -inf to a multiple of GRAIN; returns that length.
template <class Blocks, class T>
inline int copy_block(const T* x, int n, int64_t offset, const int32_t* ids, const int32_t* ids_end, float* out) {
  const int padded = (n + Blocks::GRAIN - 1) / Blocks::GRAIN * Blocks::GRAIN;
  Blocks::copy(x, n, out);
  std::fill(out + n, out + padded, -INFINITY);
  for (; ids < ids_end; ++ids)
    if (uint64_t(*ids - offset) < uint64_t(n)) out[*ids - offset] = -INFINITY;
  return padded;
}

// The two largest of a block that begins with id `offset`; its length is a multiple of GRAIN.
template <class Blocks, bool REST, class T>
inline Top2 top2_of(const T* x, int n, int64_t offset) {
  Top2 out = Blocks::top2(x, n);
  if (out.first == -INFINITY) return out;
  const int place = Blocks::find(x, out.first);
  out.token = offset + place;
  if (REST) {
    alignas(64) float others[BLOCK];
    Blocks::copy(x, n, others);
    others[place] = -INFINITY;
    exceeds<Blocks, REST>(others, n, out.second, out.sum);
  }
  return out;
}

// Scans the ids [begin, end) of a row.
template <class Blocks, bool REST, class T>
Top2 scan(const T* row, int64_t begin, int64_t end, const Suppressed& suppressed) {
  Top2 best;
  best.token = suppressed.lowest;
  alignas(64) float buffer[BLOCK];
  const int32_t* const ids_end = suppressed.ids + suppressed.count;
  const int32_t* ids = std::lower_bound(suppressed.ids, ids_end, begin);

  for (int64_t i = begin; i < end; i += BLOCK) {
    const int n = int(std::min<int64_t>(BLOCK, end - i));
    const int32_t* const hidden = ids;  // the suppressed ids of this block are [hidden, ids)
    while (ids < ids_end && *ids < i + n) ++ids;
    double sum;

    if (n == BLOCK && hidden == ids) {
      if (exceeds<Blocks, REST>(row + i, n, best.second, sum)) {
        merge<REST>(best, top2_of<Blocks, REST>(row + i, n, i));
      } else {
        best.sum += sum;
      }
      continue;
    }
    if (n == BLOCK && !REST && !Blocks::exceeds(row + i, n, best.second)) continue;
    const int padded = copy_block<Blocks>(row + i, n, i, hidden, ids, buffer);
    if (!REST || exceeds<Blocks, REST>(buffer, padded, best.second, sum)) {
      merge<REST>(best, top2_of<Blocks, REST>(buffer, padded, i));
    } else {
      best.sum += sum;
    }
  }
  return best;
}

}  // namespace LSP_NAMESPACE
