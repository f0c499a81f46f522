// The loops over one block of logits, for one instruction set (see foreach_isa.h). The block lengths are multiples of STEP.

struct Blocks {
  static constexpr int STEP = 4 * LANES;

  struct Max {
    Vec value;
    Mask nan;
  };

  template <class T>
  static Max lanes_max(const T* x, int n) {
    Vec a = splat(-INFINITY), b = a, c = a, d = a;
    Mask nan = unordered(a, a);
    for (int i = 0; i < n; i += STEP) {
      prefetch_ahead(x + i, STEP);
      const Vec p = load(x + i), q = load(x + i + LANES), r = load(x + i + 2 * LANES), s = load(x + i + 3 * LANES);
      nan = either(nan, either(unordered(p, q), unordered(r, s)));
      a = larger(p, a);
      b = larger(q, b);
      c = larger(r, c);
      d = larger(s, d);
    }
    return {larger(larger(a, b), larger(c, d)), nan};
  }

  // Whether anything in the block is above the bound, or NaN. This is what nearly every block costs.
  template <class T>
  static bool exceeds(const T* x, int n, float bound) {
    const Max top = lanes_max(x, n);
    return bits(either(top.nan, above(top.value, splat(bound)))) != 0;
  }

  // The two largest values, NaN passed over and reported; the token is left to find.
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
    float a[2 * LANES], b[2 * LANES];
    for (int k = 0; k < 2; ++k) store(a + k * LANES, first[k]), store(b + k * LANES, second[k]);
    Top2 out;
    for (int i = 0; i < 2 * LANES; ++i) {
      out.second = std::max({out.second, std::min(out.first, a[i]), b[i]});
      out.first = std::max(out.first, a[i]);
    }
    out.nan = bits(nan) != 0;
    return out;
  }

  template <class T>
  static void copy(const T* x, int n, float* out) {
    int i = 0;
    for (; i + LANES <= n; i += LANES) store(out + i, load(x + i));
    for (; i < n; ++i) out[i] = to_float(x[i]);
  }

  // The first place that holds `value`, which is there.
  template <class T>
  static int find(const T* x, float value) {
    const Vec wanted = splat(value);
    int i = 0;
    while (bits(equal(load(x + i), wanted)) == 0) i += LANES;
    while (to_float(x[i]) != value) ++i;
    return i;
  }

  // As exceeds, and on the way the sum of e^(x - bound), which holds if nothing exceeds the bound. The bound is finite.
  template <class T>
  static bool exceeds(const T* x, int n, float bound, double& sum) {
    const Vec limit = splat(bound);
    Vec top = splat(-INFINITY), total = splat(0);
    Mask nan = unordered(top, top);
    for (int i = 0; i < n; i += STEP) {
      prefetch_ahead(x + i, STEP);
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
};
