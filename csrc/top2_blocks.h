// The loops over one block of logits, for one instruction set (see foreach_isa.h). Block lengths are multiples of GRAIN.

#include "noise_blocks.h"

struct Blocks {
  static constexpr int GRAIN = 8 * LANES;

  struct Max {
    Vec value;
    Mask nan;
  };

  template <class T>
  static Max lanes_max(const T* x, int n) {
    const Vec lowest = splat(-INFINITY);
    Vec top[4] = {lowest, lowest, lowest, lowest};
    Mask nan[2] = {unordered(lowest, lowest), unordered(lowest, lowest)};
    for (int i = 0; i < n; i += GRAIN) {
      prefetch_ahead(x + i, GRAIN);
      Vec v[8];
      for (int k = 0; k < 8; ++k) v[k] = load(x + i + k * LANES);
      for (int k = 0; k < 8; ++k) top[k % 4] = larger(v[k], top[k % 4]);
      for (int k = 0; k < 2; ++k) nan[k] = either(nan[k], either(unordered(v[4 * k], v[4 * k + 1]), unordered(v[4 * k + 2], v[4 * k + 3])));
    }
    return {larger(larger(top[0], top[1]), larger(top[2], top[3])), either(nan[0], nan[1])};
  }

  // Whether anything in the block is above the bound, or NaN.
  template <class T>
  static bool exceeds(const T* x, int n, float bound) {
    const Max top = lanes_max(x, n);
    return bits(either(top.nan, above(top.value, splat(bound)))) != 0;
  }

  // The largest value of the block, or NaN if there is one. Most blocks need nothing else.
  template <class T>
  static T maximum(const T* x, int n) {
#if LSP_ISA_BITS
    if constexpr (sizeof(T) == 2) return maximum16(x, n);
#endif
    const Peak top = peak(x, n);
    T out;
    round_to(top.nan ? NAN : top.value, out);
    return out;
  }

#if LSP_ISA_BITS
  // The same for 16-bit values without converting them. Read as signed integers, positive values keep their order, and
  // negative values are below them in reverse order. A positive NaN is above +inf as a signed integer, a negative NaN is
  // above -inf as an unsigned one.
  template <class T>
  static T maximum16(const T* x, int n) {
    Vec16 highest[2] = {load16(x), load16(x)}, lowest[2] = {highest[0], highest[0]}, largest[2] = {highest[0], highest[0]};
    for (int i = 0; i < n; i += 2 * LANES16) {
      prefetch_ahead(x + i, 2 * LANES16);
      for (int k = 0; k < 2; ++k) {
        const Vec16 v = load16(x + i + k * LANES16);
        highest[k] = max_signed(highest[k], v);
        lowest[k] = min_signed(lowest[k], v);
        largest[k] = max_unsigned(largest[k], v);
      }
    }
    const Vec16 high = max_signed(highest[0], highest[1]), low = min_signed(lowest[0], lowest[1]);
    const Vec16 large = max_unsigned(largest[0], largest[1]);
    // With the sign bit flipped, a signed comparison orders the bits as unsigned integers.
    const bool nan = any_above(flip_bits(large, splat16(0x8000)), splat16(T::INFINITE));
    // With the others flipped, negative values are in order too.
    const uint16_t top = max_lane16(where_negative(high, flip_bits(low, splat16(0x7fff))));
    return {uint16_t(nan ? 0x7fff : top & 0x8000 ? top ^ 0x7fff : top)};
  }
#endif

  // Of the values from place i on, the first that is NaN, or at least `floor` and above `bound`; else n, a multiple of LANES.
  template <class T>
  static int next(const T* x, int i, int n, float floor, float bound) {
    uint32_t left = ~uint32_t(0) << i % LANES;  // of the vector that holds place i
    for (i = i / LANES * LANES; i < n; i += LANES, left = ~uint32_t(0)) {
      const Vec v = load(x + i), least = splat(floor);
      const uint32_t enough = bits(either(above(v, least), equal(v, least))) & bits(above(v, splat(bound)));
      const uint32_t found = (enough | bits(unordered(v, v))) & left;
      if (found != 0) return i + lowest_bit(found);
    }
    return n;
  }

  // The largest value without NaN, and whether there is a NaN.
  template <class T>
  static Peak peak(const T* x, int n) {
    const Max top = lanes_max(x, n);
    return {max_lane(top.value), bits(top.nan) != 0};
  }

  // The two largest values without NaN, and whether there is one; `find` finds the token.
  template <class T>
  static Top2 top2(const T* x, int n) {
    const Vec lowest = splat(-INFINITY);
    Vec first[2] = {lowest, lowest}, second[2] = {lowest, lowest};
    Mask nan = unordered(lowest, lowest);
    for (int i = 0; i < n; i += 2 * LANES) {
      const Vec v[2] = {load(x + i), load(x + i + LANES)};
      nan = either(nan, unordered(v[0], v[1]));
      for (int k = 0; k < 2; ++k) {
        second[k] = larger(smaller(v[k], first[k]), second[k]);
        first[k] = larger(v[k], first[k]);
      }
    }
    const Vec best = larger(first[0], first[1]);
    const Vec next = larger(larger(second[0], second[1]), smaller(first[0], first[1]));
    Top2 out;
    out.nan = bits(nan) != 0;
    out.first = max_lane(best);
    const Mask winner = equal(best, splat(out.first));
    const uint32_t winners = bits(winner);
    const bool shared = (winners & (winners - 1)) != 0;  // two lanes hold the best value
    out.second = shared ? out.first : max_lane(larger(choose(winner, lowest, best), next));
    return out;
  }

  template <class T>
  static void copy(const T* x, int n, float* out) {
    int i = 0;
    for (; i + LANES <= n; i += LANES) store(out + i, load(x + i));
    for (; i < n; ++i) out[i] = to_float(x[i]);
  }

  // The first index of `value`, which the block holds.
  template <class T>
  static int find(const T* x, float value) {
    const Vec wanted = splat(value);
    int i = 0;
    uint32_t found;
    while ((found = bits(equal(load(x + i), wanted))) == 0) i += LANES;
    return i + lowest_bit(found);
  }

  // As exceeds, and also the sum of e^(x - bound), which is right only if nothing exceeds the bound. The bound is finite.
  template <class T>
  static bool exceeds(const T* x, int n, float bound, double& sum) {
    const Vec limit = splat(bound);
    Vec top = splat(-INFINITY), total = splat(0);
    Mask nan = unordered(top, top);
    for (int i = 0; i < n; i += 4 * LANES) {
      prefetch_ahead(x + i, 4 * LANES);
      Vec v[4];
      for (int k = 0; k < 4; ++k) v[k] = load(x + i + k * LANES);
      nan = either(nan, either(unordered(v[0], v[1]), unordered(v[2], v[3])));
      top = larger(larger(larger(v[0], v[1]), larger(v[2], v[3])), top);
      for (int k = 0; k < 4; ++k) v[k] = sub(v[k], limit);
      exp(v);
      total = add(total, add(add(v[0], v[1]), add(v[2], v[3])));
    }
    sum = sum_lanes(total);
    return bits(either(nan, above(top, limit))) != 0;
  }

  // The sum of e^(x - base), and with TILT that of e^(x - base) (x - base). The base is finite and nothing is above it.
  template <bool TILT, class T>
  static Rest sums(const T* x, int n, float base) {
    const Vec limit = splat(base), lowest = splat(-87.0f);  // as in exp: below it a weight is as good as 0
    Vec total = splat(0), tilt = splat(0);
    for (int i = 0; i < n; i += 4 * LANES) {
      Vec v[4], below[4];
      for (int k = 0; k < 4; ++k) v[k] = below[k] = larger(sub(load(x + i + k * LANES), limit), lowest);
      exp(v);
      total = add(total, add(add(v[0], v[1]), add(v[2], v[3])));
      for (int k = 0; TILT && k < 4; ++k) tilt = fma(v[k], below[k], tilt);
    }
    return {base, sum_lanes(total), TILT ? sum_lanes(tilt) : 0.0};
  }

  // The random integers of n ids from `id` on, to be found at out + id % 4; returns the largest of them. `out` has room for
  // n + 4 * LANES.
  static uint32_t random_integers(const RowNoise& noise, int64_t id, int n, uint32_t* out) {
    constexpr int H = 2, IDS = H * 4 * SLOTS;
    uint64_t order[H * SLOTS];  // of counters, so that in_order gives consecutive ids
    for (int h = 0; h < H; ++h)
      for (int s = 0; s < SLOTS; ++s) order[h * SLOTS + s] = h * SLOTS + s / 2 + s % 2 * (SLOTS / 2);
    const Wide place[2] = {splat_wide(noise.position), splat_wide(noise.pass)};
    const Wide seed[2] = {splat_wide(noise.seed[0]), splat_wide(noise.seed[1])};
    Ints most = splat_int(0);
    for (int64_t group = id / 4 * 4; group < id + n; group += IDS, out += IDS) {
      Wide counter[4][H], key[2][H];
      for (int h = 0; h < H; ++h) {
        counter[0][h] = add_wide(splat_wide(group / 4), load_wide(order + h * SLOTS));
        counter[1][h] = place[0], counter[2][h] = place[1], counter[3][h] = splat_wide(0);
        key[0][h] = seed[0], key[1][h] = seed[1];
      }
      philox(counter, key);
      for (int h = 0; h < H; ++h) {
        Ints words[2];
        in_order({counter[0][h], counter[1][h], counter[2][h], counter[3][h]}, words);
        for (int k = 0; k < 2; ++k) {
          store_int(out + (2 * h + k) * LANES, words[k]);
          most = max_int(most, words[k]);
        }
      }
    }
    uint32_t lane[LANES];
    store_int(lane, most);
    return *std::max_element(lane, lane + LANES);
  }

  // out = x + temperature * noise
  template <class T>
  static void add_noise(const T* x, int n, const uint32_t* integers, float temperature, float* out) {
    for (int i = 0; i < n; i += 4 * LANES) {
      Ints words[4];
      Vec noise[4];
      for (int k = 0; k < 4; ++k) words[k] = load_int(integers + i + k * LANES);
      gumbel(words, noise);
      for (int k = 0; k < 4; ++k) store(out + i + k * LANES, fma(splat(temperature), noise[k], load(x + i + k * LANES)));
    }
  }
};
