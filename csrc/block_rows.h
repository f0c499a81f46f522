// The loops over one row of each operation of block.cpp, for one instruction set (see foreach_isa.h).
//
// A row of n values is read in vectors; of the last one only some lanes may count, the others are 0.

struct Blocks {
  template <class T>
  static Vec load_some(const T* p, int64_t count) {
    if (count >= LANES) return load(p);
    T room[LANES] = {};
    std::memcpy(room, p, count * sizeof(T));
    return load(room);
  }

  template <class T>
  static void store_some(T* p, Vec x, int64_t count) {
    if (count >= LANES) return store(p, x);
    T room[LANES];
    store(room, x);
    std::memcpy(p, room, count * sizeof(T));
  }

  // What n values are multiplied by to be normalised, from the sums of their squares.
  static Vec norm_factor(const Vec (&sums)[4], int64_t n, float eps) {
    const float squares = sum_lanes(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
    return splat(1.0f / std::sqrt(squares / float(n) + eps));
  }

  // out = norm(x), or residual += x and out = norm(residual), where the rounded sum is what counts.
  template <class T>
  static void norm_row(const T* x, T* residual, const T* weight, T* out, int64_t n, float eps) {
    Vec sums[4] = {splat(0), splat(0), splat(0), splat(0)};
    for (int64_t i = 0, step = 0; i < n; i += LANES, ++step) {
      if (residual) store_some(residual + i, add(load_some(residual + i, n - i), load_some(x + i, n - i)), n - i);
      const Vec value = load_some((residual ? residual : x) + i, n - i);
      sums[step % 4] = fma(value, value, sums[step % 4]);
    }
    const Vec factor = norm_factor(sums, n, eps);
    const T* rows = residual ? residual : x;
    for (int64_t i = 0; i < n; i += LANES) {
      const Vec normed = mul(load_some(rows + i, n - i), factor);
      store_some(out + i, mul(normed, load_some(weight + i, n - i)), n - i);
    }
  }

  // The factor of a head, whose halves are read as they are turned: no vector has values of both.
  template <class T>
  static Vec head_factor(const T* head, int64_t half, float eps) {
    Vec sums[4] = {splat(0), splat(0), splat(0), splat(0)};
    for (int64_t i = 0, step = 0; i < half; i += LANES, step += 2)
      for (int64_t side = 0; side < 2; ++side) {
        const Vec value = load_some(head + side * half + i, half - i);
        sums[(step + side) % 4] = fma(value, value, sums[(step + side) % 4]);
      }
    return norm_factor(sums, 2 * half, eps);
  }

  // Turns the pairs (j, j + half) of a head; of its norm, if it has a weight.
  template <class T>
  static void rotate_head(T* head, const T* weight, const float* cos, const float* sin, int64_t half, float eps) {
    const Vec factor = weight ? head_factor(head, half, eps) : splat(1);
    for (int64_t i = 0; i < half; i += LANES) {
      const int64_t left = half - i;
      Vec a = load_some(head + i, left), b = load_some(head + half + i, left);
      if (weight) {
        a = mul(mul(a, factor), load_some(weight + i, left));
        b = mul(mul(b, factor), load_some(weight + half + i, left));
      }
      const Vec c = load_some(cos + i, left), s = load_some(sin + i, left);
      store_some(head + i, sub(mul(a, c), mul(b, s)), left);
      store_some(head + half + i, add(mul(b, c), mul(a, s)), left);
    }
  }

  // e^x to an ulp or two where it is a normal number; +inf above 88.7228, where float32 ends, and about 0 below -87.
  static Vec exp_exact(Vec x) {
    const Vec most = splat(88.7228f), shift = splat(0x1.8p23f);
    const Vec held = larger(smaller(x, most), splat(-87.0f));
    const Vec biased = fma(held, splat(1.44269504f), shift);  // round(x * log2 e) in the low bits
    const Vec k = sub(biased, shift);
    // ln 2 in two parts: the first has so few bits that its products with k are exact.
    const Vec r = fma(k, splat(2.12194440e-4f), fma(k, splat(-0.693359375f), held));
    Vec p = splat(1.9875691500e-4f);
    for (float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
      p = fma(p, r, splat(c));
    const Vec e = scale2(add(fma(p, mul(r, r), r), splat(1.0f)), biased);
    return choose(above(x, most), splat(INFINITY), e);
  }

  template <class T>
  static void silu_mul_row(const T* gate, const T* up, T* out, int64_t n) {
    for (int64_t i = 0; i < n; i += LANES) {
      const Vec z = load_some(gate + i, n - i);
      const Vec silu = div(z, add(splat(1.0f), exp_exact(sub(splat(0.0f), z))));
      store_some(out + i, mul(silu, load_some(up + i, n - i)), n - i);
    }
  }
};
