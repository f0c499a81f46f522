// Gumbel noise from the integers of Philox 4x32-10, for one instruction set. Included by the blocks of an operation only.
// There is no code for single ids, so that an id has the same noise wherever it stands in a vector.

constexpr int SLOTS = LANES / 2;

// Philox 4x32-10 of H vectors of counters, in place: afterwards `counter` holds the four words. The low half of every slot
// counts.
template <int H>
inline void philox(Wide (&counter)[4][H], Wide (&key)[2][H]) {
  const Wide multiplier[2] = {splat_wide(0xd2511f53), splat_wide(0xcd9e8d57)};
  const Wide weyl[2] = {splat_wide(0x9e3779b9), splat_wide(0xbb67ae85)};  // added to the key after every round
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 4
    for (int h = 0; h < H; ++h) {
      const Wide p0 = multiply_low(counter[0][h], multiplier[0]), p1 = multiply_low(counter[2][h], multiplier[1]);
      counter[0][h] = flip(flip(high_half(p1), counter[1][h]), key[0][h]);
      counter[1][h] = p1;
      counter[2][h] = flip(flip(high_half(p0), counter[3][h]), key[1][h]);
      counter[3][h] = p0;
      for (int k = 0; k < 2; ++k) key[k][h] = add_wide(key[k][h], weyl[k]);
    }
  }
}

// -log x, and with it the exponent and h = 1 - mantissa of x, where the mantissa is from 1/2 to 1.
struct Parts {
  Vec exponent, h;
};
inline Parts parts_of(Vec x) {
  const Ints b = int_bits(x);
  const Vec mantissa = float_bits(any(both(b, splat_int(0x007fffff)), splat_int(0x3f000000)));
  return {sub(from_signed(shift_right(b, 23)), splat(126.0f)), sub(splat(1.0f), mantissa)};
}

// -log((1 - h) 2^exponent) for h from 0 to 1/2: a polynomial times h, so that the relative error is below 3e-7 where the
// exponent is 0, however small h is.
inline void minus_log(Parts (&x)[4], Vec (&out)[4]) {
  constexpr float COEFFICIENTS[] = {-0x1.14dfd2p+0f, 0x1.922406p-1f, 0x1.37719ep-5f, 0x1.16c8d8p-2f,
                                    0x1.53d3ccp-2f,  0x1.0004cap-1f, 0x1.fffffcp-1f};
  for (Vec& p : out) p = splat(0x1.2f57acp+0f);
#pragma GCC unroll 8
  for (float c : COEFFICIENTS)
    for (int k = 0; k < 4; ++k) out[k] = fma(out[k], x[k].h, splat(c));
  for (int k = 0; k < 4; ++k) out[k] = fma(x[k].exponent, splat(-0x1.62e43p-1f), mul(out[k], x[k].h));
}

// The noise of four vectors of integers x: -log E, where E = -log v and v = (x + 1/2) / 2^32. In the upper half of the
// integers E is made from 1 - v, which has all its digits there. Absolute error below 1e-6 + 1e-7 |noise|.
inline void gumbel(const Ints (&x)[4], Vec (&out)[4]) {
  Parts parts[4];
  for (int k = 0; k < 4; ++k) {
    const Mask upper = negative(x[k]);
    const Vec u = mul(add(from_signed(flip(x[k], sign_of(x[k]))), splat(0.5f)), splat(0x1p-32f));
    const Parts lower = parts_of(u);
    parts[k] = {choose(upper, splat(0.0f), lower.exponent), choose(upper, u, lower.h)};
  }
  minus_log(parts, out);
  for (int k = 0; k < 4; ++k) parts[k] = parts_of(out[k]);
  minus_log(parts, out);
}
