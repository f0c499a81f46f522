// The selection rule for one sequence, in the steps and under the names of lsp_kernels/rule.py, which explains them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace LSP_NAMESPACE {

constexpr uint8_t DELIMITER = 1, STOP = 2;
constexpr int64_t MILLION = 1000000;

struct Selection {
  int32_t length = 0;
  bool finished = false;
};

struct Rule {
  int64_t alpha_ppm, beta_ppm, min_length, window;
  bool has_floor;
  float floor;
  bool snap, keep;
  const uint8_t* flags;  // per id, or nullptr
  int64_t vocabulary;    // number of flags

  int64_t lowest(int64_t n) const {
    return has_floor ? 1 : std::max<int64_t>(1, (alpha_ppm * n + MILLION - 1) / MILLION);
  }
  int64_t highest(int64_t n) const { return std::min(n, std::max(lowest(n), beta_ppm * n / MILLION)); }
  int64_t scored_rows(int64_t n) const { return std::min(n, std::max(highest(n) + !has_floor, min_length)); }

  bool has_flag(int64_t token, uint8_t flag) const {
    return flags && token >= 0 && token < vocabulary && (flags[token] & flag);
  }

  // L', the candidate: the longest length in the target range that some threshold gives, else the range's end. With a
  // floor: the number of positions before the first margin below it, at least 1 and at most the range's end.
  int64_t stable_length(const float* margins, int64_t n) const {
    const int64_t lo = lowest(n), hi = highest(n);
    float prefix_min = INFINITY;
    if (has_floor) {
      int64_t run = 0;
      while (run < hi && (prefix_min = std::min(prefix_min, margins[run])) >= floor) ++run;
      return std::min(hi, std::max<int64_t>(run, 1));
    }
    if (hi == n) return n;
    int64_t best = hi;
    bool found = false;
    for (int64_t m = 0; m <= hi; ++m) {  // length m is reachable exactly if the margin after it is a new minimum
      if (m >= lo && margins[m] < prefix_min) best = m, found = true;
      prefix_min = std::min(prefix_min, margins[m]);
    }
    return found ? best : hi;
  }

  int64_t snap_to_delimiter(const int64_t* tokens, int64_t length) const {
    if (!snap) return length;
    for (int64_t j = length; j >= 1 && length - j <= window; --j)
      if (has_flag(tokens[j - 1], DELIMITER)) return j;
    return keep ? length : min_length;
  }

  Selection cut_at_stop(const int64_t* tokens, int64_t length) const {
    for (int64_t j = 1; j <= length; ++j)
      if (has_flag(tokens[j - 1], STOP)) return {int32_t(j), true};
    return {int32_t(length), false};
  }

  // The choice for n active positions, of which at least the first scored_rows(n) are given.
  Selection select(const float* margins, const int64_t* tokens, int64_t n) const {
    for (int64_t i = 0, scored = scored_rows(n); i < scored; ++i)
      if (std::isnan(margins[i])) return {};
    if (n == 0) return {};
    const int64_t length = snap_to_delimiter(tokens, stable_length(margins, n));
    return cut_at_stop(tokens, std::min(std::max(length, min_length), n));
  }
};

}  // namespace LSP_NAMESPACE
