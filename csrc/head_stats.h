// Statistics of logits with rows in the lanes, for one instruction set. Included by head_blocks.h only.

#include "noise_blocks.h"

inline Vec splat_bits(int32_t x) {
  float out;
  std::memcpy(&out, &x, 4);
  return splat(out);
}

// What is known of the rows in the lanes of one vector. `sum` and `tilt` are those of Rest relative to `base`, which the
// largest logit but the best exceeds by at most RISE. Without noise `clean` is `first`.
constexpr float RISE = 8;
struct State {
  Vec first, second, token, nan, clean, base, sum, tilt;

  static constexpr int PARTS = 8;
  static State load_from(const float* p, int64_t rows) {
    return {load(p), load(p + rows), load(p + 2 * rows), load(p + 3 * rows),
            load(p + 4 * rows), load(p + 5 * rows), load(p + 6 * rows), load(p + 7 * rows)};
  }
  void store_to(float* p, int64_t rows) const {
    store(p, first), store(p + rows, second), store(p + 2 * rows, token), store(p + 3 * rows, nan);
    store(p + 4 * rows, clean), store(p + 5 * rows, base), store(p + 6 * rows, sum), store(p + 7 * rows, tilt);
  }
};

// x - base from -87 on, below which a weight is as good as 0; 0 where both are equal, also if they are infinite
inline Vec below(Vec x, Vec base) {
  return choose(equal(x, base), splat(0.0f), larger(sub(x, base), splat(-87.0f)));
}

// Adds the weight of four ids that are not the best. The base changes seldom, because every change rounds the sums.
template <bool TILT>
inline void add_weights(State& state, const Vec (&losers)[4]) {
  const Vec nothing = splat(-INFINITY), before = state.base;
  Vec x[4], w[4], high = nothing;
  for (const Vec& loser : losers) high = larger(loser, high);
  const Mask rises = above(high, add(before, splat(RISE)));
  if (bits(rises) != 0) {
    state.base = choose(rises, high, before);
    const Vec shift = below(before, state.base);
    for (Vec& each : w) each = shift;
    exp(w);
    const Vec carry = choose(rises, w[0], splat(1.0f));
    if (TILT) state.tilt = mul(carry, fma(shift, state.sum, state.tilt));
    state.sum = mul(carry, state.sum);
  }
  const Vec base = choose(equal(state.base, nothing), splat(0.0f), state.base);
  for (int k = 0; k < 4; ++k) w[k] = x[k] = below(losers[k], base);
  exp(w);
  state.sum = add(state.sum, add(add(w[0], w[1]), add(w[2], w[3])));
  for (int k = 0; TILT && k < 4; ++k) state.tilt = fma(w[k], x[k], state.tilt);
}

// Adds four ids: clean logits z and noisy ones y, which are the same without noise.
template <Want WANT, bool NOISE>
inline void add_four(State& state, const Vec (&z)[4], const Vec (&y)[4], int64_t id) {
  Vec losers[4];
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    const Mask better = above(y[k], state.first);
    losers[k] = choose(better, NOISE ? state.clean : state.first, z[k]);
    if (NOISE) state.clean = choose(better, z[k], state.clean);
    state.nan = choose(unordered(z[k], z[k]), splat(1.0f), state.nan);
    state.second = larger(smaller(y[k], state.first), state.second);
    state.first = larger(y[k], state.first);
    state.token = choose(better, splat_bits(int32_t(id + k)), state.token);
  }
  if (WANT != Want::top2) add_weights<WANT == Want::entropy>(state, losers);
}

// Adds four ids of which none is among the two largest.
template <Want WANT>
inline void add_losers(State& state, const Vec (&z)[4]) {
  for (const Vec& each : z) state.nan = choose(unordered(each, each), splat(1.0f), state.nan);
  if (WANT != Want::top2) add_weights<WANT == Want::entropy>(state, z);
}

// What the noise of the rows in the lanes of one vector is made of.
struct Keys {
  Ints seed[2], position, pass;
  Vec temperature;

  static constexpr int PARTS = 5;
  static Keys load_from(const uint32_t* p, int64_t rows) {
    return {{load_int(p), load_int(p + rows)}, load_int(p + 2 * rows), load_int(p + 3 * rows), float_bits(load_int(p + 4 * rows))};
  }
};

inline void split(Ints x, Wide (&out)[2]) { out[0] = even_lanes(x), out[1] = odd_lanes(x); }

// The random integers of ids 4 * group to 4 * group + 3.
inline void random_integers(const Keys& keys, uint32_t group, Ints (&out)[4]) {
  Wide counter[4][2] = {{splat_wide(group), splat_wide(group)}, {}, {}, {splat_wide(0), splat_wide(0)}}, key[2][2];
  split(keys.position, counter[1]), split(keys.pass, counter[2]);
  split(keys.seed[0], key[0]), split(keys.seed[1], key[1]);
  philox(counter, key);
  for (int word = 0; word < 4; ++word) out[word] = pair(counter[word][0], counter[word][1]);
}

// No less than the noise of an integer x: with w = 1 - (x + 1/2) / 2^32 the noise is at most -log w, and the bits of a float,
// read as an integer, are a line below its logarithm.
inline Vec most_noise(Ints x) {
  const Vec w = from_signed(shift_right(flip(x, splat_int(0xffffffff)), 1));  // in units of 2^-31
  constexpr float LOG2 = 0.6931472f;
  return fma(from_signed(int_bits(w)), splat(-LOG2 * 0x1p-23f), splat((127 + 31) * LOG2 + 1e-3f));
}

// The statistics of the rows of a task, from the logits of a few ids at a time.
struct Stats {
  const Scoring& scoring;
  HeadMemory& memory;
  const int64_t count, padded;  // rows

  void begin() const {
    memory.state.assign(State::PARTS * padded, 0.0f);
    for (int part : {0, 1, 4, 5}) std::fill_n(memory.state.data() + part * padded, padded, -INFINITY);
    if (!scoring.noise) return;
    memory.keys.assign(Keys::PARTS * padded, 0);
    for (int64_t row = 0; row < count; ++row) {
      const RowNoise& noise = scoring.noise[row];
      uint32_t temperature;
      std::memcpy(&temperature, &noise.temperature, 4);
      const uint32_t parts[Keys::PARTS] = {noise.seed[0], noise.seed[1], noise.position, noise.pass, temperature};
      for (int part = 0; part < Keys::PARTS; ++part) memory.keys[part * padded + row] = parts[part];
    }
  }

  // Four ids whose noise is that of one group of four, or fewer: the others are -inf.
  template <Want WANT>
  void add_noisy(State& state, const Keys& keys, const Vec (&z)[4], int64_t id) const {
    Ints integers[4];
    random_integers(keys, uint32_t((scoring.id_offset + id) / 4), integers);
    Mask any = above(z[0], z[0]);
    for (int k = 0; k < 4; ++k) any = either(any, above(fma(keys.temperature, most_noise(integers[k]), z[k]), state.second));
    if (bits(any) == 0) return add_losers<WANT>(state, z);
    Vec noise[4];
    gumbel(integers, noise);
    for (int k = 0; k < 4; ++k) noise[k] = fma(keys.temperature, noise[k], z[k]);
    add_four<WANT, true>(state, z, noise, id);
  }

  // Adds the logits [ids][padded] of ids from `id` on, each plus its bias.
  void add_logits(int64_t id, int64_t ids, const float* logits, const float* bias) const {
    with_want(scoring.want, [&](auto want) {
      constexpr Want WANT = decltype(want)::value;
      return scoring.noise ? add_wanted<WANT, true>(id, ids, logits, bias) : add_wanted<WANT, false>(id, ids, logits, bias);
    });
  }

  template <Want WANT, bool NOISE>
  void add_wanted(int64_t id, int64_t ids, const float* logits, const float* bias) const {
    const int64_t shift = NOISE ? (scoring.id_offset + id) % 4 : 0;  // groups of four have their own border
    bool hidden[IDS + 8];
    for (int64_t i = 0; i < IDS + 8; ++i) hidden[i] = i < shift || i >= ids + shift || is_suppressed(id + i - shift);
    for (int64_t row = 0; row < padded; row += LANES) {
      float* p = memory.state.data() + row;
      State state = State::load_from(p, padded);
      Keys keys;
      if (NOISE) keys = Keys::load_from(memory.keys.data() + row, padded);
      for (int64_t i = 0; i < ids + shift; i += 4) {
        Vec z[4];
        for (int k = 0; k < 4; ++k)
          z[k] = hidden[i + k] ? splat(-INFINITY) : add(load(logits + (i + k - shift) * padded + row), splat(bias[i + k - shift]));
        if constexpr (NOISE) {
          add_noisy<WANT>(state, keys, z, id + i - shift);
        } else {
          add_four<WANT, false>(state, z, z, id + i);
        }
      }
      state.store_to(p, padded);
    }
  }

  bool is_suppressed(int64_t id) const {
    const Suppressed& s = scoring.suppressed;
    return s.count > 0 && std::binary_search(s.ids, s.ids + s.count, int32_t(id));
  }

  void finish(Top2* out) const {
    for (int64_t row = 0; row < count; ++row) {
      const float* p = memory.state.data() + row;
      int32_t token;
      std::memcpy(&token, p + 2 * padded, 4);
      const bool found = p[0] > -INFINITY;
      out[row] = {p[0], p[padded], p[3 * padded] != 0, found ? token : scoring.suppressed.lowest, scoring.noise ? p[4 * padded] : p[0],
                  {p[5 * padded], p[6 * padded], p[7 * padded]}};
    }
  }
};
