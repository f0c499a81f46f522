// The two largest logits of a row and, for log-odds and entropy, the weight of all but the best, in one read of the row.
//
// A block is first reduced to its maximum. For the two largest alone, the maxima of all blocks tell which two or three blocks
// have them: these are read again. With sums the maximum of the rest must be near while they are made, so a block is read
// again, while it is in the L1 cache, whenever its maximum exceeds the second best so far. With noise a block is passed by if
// its maximum and the largest noise together do not exceed the second best, or if none of its random integers is large
// enough for that: then no logarithm is computed.
#pragma once

#include "noise.h"
#include "types.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace LSP_NAMESPACE {

constexpr int BLOCK = 512;
constexpr float HIGHEST_LOG_ODDS = 80.0f;

// Suppressed ids, sorted, and the lowest id that is not among them, for rows without a logit above -inf.
struct Suppressed {
  const int32_t* ids = nullptr;
  int64_t count = 0;
  int64_t lowest = 0;
};

// What is asked for: each includes what is before it.
enum class Want { top2, log_odds, entropy };

// Calls f with what is asked for as a compile-time constant.
template <class F>
void with_want(Want want, const F& f) {
  switch (want) {
    case Want::top2: return f(std::integral_constant<Want, Want::top2>());
    case Want::log_odds: return f(std::integral_constant<Want, Want::log_odds>());
    case Want::entropy: return f(std::integral_constant<Want, Want::entropy>());
  }
}

inline double exp_of_difference(float a, float b) { return a == b ? 1.0 : std::exp(double(a) - double(b)); }

// The weight of some ids: the sums of e^(z - most) and of e^(z - most) (z - most), where `most` is the largest logit z or not
// far below it, and -inf only if all are.
struct Rest {
  float most = -INFINITY;
  double sum = 0, tilt = 0;

  // e^(most - base) times both sums, for a base that is not lower
  Rest relative_to(float base) const {
    const double factor = exp_of_difference(most, base);
    if (factor == 0) return {base, 0, 0};
    return {base, factor * sum, factor * (most == base ? tilt : tilt + (double(most) - double(base)) * sum)};
  }
  void add(const Rest& other) {
    const float base = std::max(most, other.most);
    const Rest a = relative_to(base), b = other.relative_to(base);
    *this = {base, a.sum + b.sum, a.tilt + b.tilt};
  }
};

// The largest of some values without NaN, and whether there is a NaN.
struct Peak {
  float value;
  bool nan;
};

// What is known of some consecutive logits of a row. With noise, `first` and `second` are noisy; the rest is clean.
struct Top2 {
  float first = -INFINITY, second = -INFINITY;
  bool nan = false;
  int64_t token = 0;
  float clean = -INFINITY;  // the logit of the token
  Rest rest;                // all ids but the token; kept with Want::log_odds, its tilt with Want::entropy

  float margin() const { return nan ? NAN : first == second ? 0.0f : first - second; }

  // log(p / (1 - p)) of the token: minus the log of the sum of e^(z_j - clean) over the `others`, which are the ids that are
  // neither suppressed nor the token.
  float log_odds(int64_t others) const {
    if (nan) return NAN;
    if (others == 0) return INFINITY;
    if (rest.most == -INFINITY) return clean == -INFINITY ? float(0.0 - std::log(double(others))) : HIGHEST_LOG_ODDS;
    const double above = clean == rest.most ? 0.0 : double(clean) - double(rest.most);
    return std::min(float(above - std::log(rest.sum)), HIGHEST_LOG_ODDS);
  }

  // of the softmax of all allowed ids, in nats
  float entropy(int64_t others) const {
    if (nan) return NAN;
    if (rest.most == -INFINITY) return clean == -INFINITY ? float(std::log(double(others) + 1)) : 0.0f;
    const float base = std::max(clean, rest.most);
    const Rest token = Rest{clean, 1, 0}.relative_to(base), apart = rest.relative_to(base);
    const double log_total = clean == base ? std::log1p(apart.sum) : std::log(token.sum + apart.sum);
    return std::max(float(log_total - (token.tilt + apart.tilt) / (token.sum + apart.sum)), 0.0f);
  }
};

// Joins `right`, which follows `left` in the row. Of equal values the lower id wins, hence the left one.
template <bool REST>
inline void merge(Top2& left, const Top2& right) {
  const bool better = right.first > left.first;
  if (REST) {
    left.rest.add(right.rest);
    left.rest.add({better ? left.clean : right.clean, 1, 0});
  }
  left.second = std::max({left.second, right.second, std::min(left.first, right.first)});
  left.nan |= right.nan;
  if (better) {
    left.first = right.first;
    left.token = right.token;
    left.clean = right.clean;
  }
}

// Whether anything in the block is above the bound or NaN; if not, `sum` becomes the sum of e^(x - bound). With an infinite
// bound that difference does not exist: with -inf the sum is 0, with +inf it counts the values +inf.
template <class Blocks, class T>
inline bool exceeds(const T* x, int n, float bound, double& sum) {
  sum = 0;
  if (std::isfinite(bound)) return Blocks::exceeds(x, n, bound, sum);
  if (bound == INFINITY) sum = double(std::count_if(x, x + n, [](T value) { return to_float(value) == INFINITY; }));
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
  out.clean = out.first;
  if (REST) {
    alignas(64) float others[BLOCK];
    Blocks::copy(x, n, others);
    others[place] = -INFINITY;
    out.rest.most = out.second;
    exceeds<Blocks>(others, n, out.second, out.rest.sum);
  }
  return out;
}

// Adds a block that begins with id `offset`, with the sums of log-odds.
template <class Blocks, class T>
inline void add_sums(Top2& best, const T* x, int n, int64_t offset) {
  double sum;
  if (exceeds<Blocks>(x, n, best.second, sum)) {
    merge<true>(best, top2_of<Blocks, true>(x, n, offset));
  } else {
    best.rest.sum += sum;
  }
}

// The suppressed ids of a block that begins with id `offset`.
struct Hidden {
  Hidden(const Suppressed& suppressed, int64_t offset, int n) {
    const int32_t* const last = suppressed.ids + suppressed.count;
    begin = std::lower_bound(suppressed.ids, last, offset);
    for (end = begin; end < last && *end < offset + n;) ++end;
  }
  const int32_t *begin, *end;
};

// The two largest of a block without those that are suppressed.
template <class Blocks, class T>
Top2 top2_allowed(const T* x, int n, int64_t offset, const Suppressed& suppressed) {
  const Hidden hidden(suppressed, offset, n);
  if (n == BLOCK && hidden.begin == hidden.end) return top2_of<Blocks, false>(x, n, offset);
  alignas(64) float buffer[BLOCK];
  const int padded = copy_block<Blocks>(x, n, offset, hidden.begin, hidden.end, buffer);
  return top2_of<Blocks, false>(buffer, padded, offset);
}

constexpr int BLOCKS_AT_ONCE = 512;  // whose maxima are kept
constexpr int FEW_BLOCKS = 4;        // it costs more to choose among fewer than to look at them all
constexpr int CHOICES = 2;

// Adds some whole blocks that begin with id `offset`. The maximum of each block is found without looking at suppressed ids,
// which would cost more than reading the row. Two blocks have values as large as the second largest maximum, so only blocks
// that reach it can have the two largest values, and mostly there are no more than two. Where a maximum turns out to be
// suppressed, it is corrected and the choice made again; after CHOICES of them every block is looked at that is above the
// second best so far. Blocks are taken in order, and without a branch per block that depends on its values: a row has a
// dozen blocks that exceed all before them, and each would cost a misprediction.
template <class Blocks, class T>
void add_blocks(Top2& best, const T* x, int blocks, int64_t offset, const Suppressed& suppressed) {
  alignas(64) T maxima[BLOCKS_AT_ONCE];
  static_assert(BLOCKS_AT_ONCE % Blocks::GRAIN == 0);
  const int padded = (blocks + Blocks::GRAIN - 1) / Blocks::GRAIN * Blocks::GRAIN;
  for (int b = 0; b < blocks; ++b) maxima[b] = Blocks::maximum(x + int64_t(b) * BLOCK, BLOCK);
  for (int b = blocks; b < padded; ++b) round_to(-INFINITY, maxima[b]);

  for (int choice = 0;; ++choice) {
    const bool last = choice == CHOICES;
    const float floor = last ? -INFINITY : Blocks::top2(maxima, padded).second;
    Top2 found = best;
    bool wrong = false;
    for (int b = -1; (b = Blocks::next(maxima, b + 1, padded, floor, found.second)) < blocks;) {
      const int64_t first = int64_t(b) * BLOCK;
      const Top2 here = top2_allowed<Blocks>(x + first, BLOCK, offset + first, suppressed);
      merge<false>(found, here);
      if (!(here.first < to_float(maxima[b]))) continue;
      round_to(here.first, maxima[b]);
      wrong = true;
    }
    if (last || !wrong) {
      best = found;
      return;
    }
  }
}

// Scans the ids [begin, end) of a row for the two largest.
template <class Blocks, class T>
Top2 scan(const T* row, int64_t begin, int64_t end, const Suppressed& suppressed) {
  Top2 best;
  best.token = suppressed.lowest;
  while (end - begin >= FEW_BLOCKS * BLOCK) {
    const int blocks = int(std::min<int64_t>(BLOCKS_AT_ONCE, (end - begin) / BLOCK));
    add_blocks<Blocks>(best, row + begin, blocks, begin, suppressed);
    begin += int64_t(blocks) * BLOCK;
  }
  for (; begin < end; begin += BLOCK) {
    const int n = int(std::min<int64_t>(BLOCK, end - begin));
    merge<false>(best, top2_allowed<Blocks>(row + begin, n, begin, suppressed));
  }
  return best;
}

// As `scan`, with the sums of log-odds.
template <class Blocks, class T>
Top2 scan_sums(const T* row, int64_t begin, int64_t end, const Suppressed& suppressed) {
  Top2 best;
  best.token = suppressed.lowest;
  alignas(64) float buffer[BLOCK];
  const int32_t* const ids_end = suppressed.ids + suppressed.count;
  const int32_t* ids = std::lower_bound(suppressed.ids, ids_end, begin);

  for (int64_t i = begin; i < end; i += BLOCK) {
    const int n = int(std::min<int64_t>(BLOCK, end - i));
    const int32_t* const hidden = ids;  // the suppressed ids of this block are [hidden, ids)
    while (ids < ids_end && *ids < i + n) ++ids;
    if (n == BLOCK && hidden == ids) {
      add_sums<Blocks>(best, row + i, n, i);
    } else {
      const int padded = copy_block<Blocks>(row + i, n, i, hidden, ids, buffer);
      add_sums<Blocks>(best, buffer, padded, i);
    }
  }
  return best;
}

// The sums of a block whose largest value is known.
template <class Blocks, bool TILT, class T>
inline Rest rest_of(const T* x, int n, float most) {
  if (std::isfinite(most)) return Blocks::template sums<TILT>(x, n, most);
  Rest out{most, 0, 0};
  if (most == INFINITY) exceeds<Blocks>(x, n, most, out.sum);
  return out;
}

// Whether noise can lift an id of a block above `second`: if so, `noisy` becomes the block with its noise.
template <class Blocks, class T>
inline bool lifts(const T* x, int n, float most, float second, int64_t id, const RowNoise& noise, float* noisy) {
  if (most == -INFINITY || second == INFINITY) return false;
  const double level = (double(second) - double(most)) / double(noise.temperature);  // the noise that is needed
  const uint64_t least = least_integer(level);
  alignas(64) uint32_t integers[BLOCK + Blocks::GRAIN];
  if (least > UINT32_MAX || Blocks::random_integers(noise, id, n, integers) < least) return false;
  Blocks::add_noise(x, n, integers + id % 4, noise.temperature, noisy);
  return true;
}

// Adds a block that begins with id `offset`; its length is a multiple of GRAIN. Without noise `noise` is nullptr.
template <class Blocks, Want WANT, class T>
inline void add_block(Top2& best, const T* x, int n, int64_t offset, int64_t id_offset, const RowNoise* noise) {
  alignas(64) float noisy[BLOCK];
  const Peak peak = Blocks::peak(x, n);
  Top2 found;
  if (!noise && peak.value > best.second) found = top2_of<Blocks, false>(x, n, offset);
  if (noise && lifts<Blocks>(x, n, peak.value, best.second, id_offset + offset, *noise, noisy))
    found = top2_of<Blocks, false>(noisy, n, offset);
  found.nan |= peak.nan;
  const bool better = found.first > best.first;  // the winner is in this block
  if (better) found.clean = to_float(x[found.token - offset]);
  if (WANT == Want::top2) return merge<false>(best, found);
  constexpr bool TILT = WANT == Want::entropy;
  if (better) {
    alignas(64) float others[BLOCK];
    Blocks::copy(x, n, others);
    others[found.token - offset] = -INFINITY;
    found.rest = rest_of<Blocks, TILT>(others, n, Blocks::peak(others, n).value);
    merge<true>(best, found);
  } else {
    merge<false>(best, found);
    best.rest.add(rest_of<Blocks, TILT>(x, n, peak.value));
  }
}

// As `scan`, with noise or entropy. The noise of an id is that of id_offset + id.
template <class Blocks, Want WANT, class T>
Top2 scan_blocks(const T* row, int64_t begin, int64_t end, const Suppressed& suppressed, int64_t id_offset,
                 const RowNoise* noise) {
  Top2 best;
  best.token = suppressed.lowest;
  alignas(64) float buffer[BLOCK];
  const int32_t* const ids_end = suppressed.ids + suppressed.count;
  const int32_t* ids = std::lower_bound(suppressed.ids, ids_end, begin);
  for (int64_t i = begin; i < end; i += BLOCK) {
    const int n = int(std::min<int64_t>(BLOCK, end - i));
    const int32_t* const hidden = ids;
    while (ids < ids_end && *ids < i + n) ++ids;
    if (n == BLOCK && hidden == ids) {
      add_block<Blocks, WANT>(best, row + i, n, i, id_offset, noise);
    } else {
      const int padded = copy_block<Blocks>(row + i, n, i, hidden, ids, buffer);
      add_block<Blocks, WANT>(best, buffer, padded, i, id_offset, noise);
    }
  }
  return best;
}

}  // namespace LSP_NAMESPACE
