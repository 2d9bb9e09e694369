// Primitives in plain C++, for compilers to vectorise: any processor. LANEWISE_LANES may be 8 or 16;
// 16 has the layout of AVX-512, whose algorithms are tested with it.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>

#include "half.h"

#ifndef LANEWISE_LANES
#define LANEWISE_LANES 8
#endif

namespace simd {

constexpr int kLanes = LANEWISE_LANES;
constexpr const char* kName = "portable";

struct Floats { float v[kLanes]; };
struct Ints { int32_t v[kLanes]; };
struct Bytes { uint8_t v[4 * kLanes]; };
struct Words { int16_t v[2 * kLanes]; };
using Sum4 = Ints;

template <class F>
inline Floats each(F f) {
  Floats y;
  for (int i = 0; i < kLanes; ++i) y.v[i] = f(i);
  return y;
}

inline Floats set1(float x) { return each([&](int) { return x; }); }
inline Floats zero() { return set1(0.0f); }
inline Floats load(const float* p) { return each([&](int i) { return p[i]; }); }
inline void store(float* p, Floats x) { std::memcpy(p, x.v, sizeof x.v); }
inline Floats add(Floats a, Floats b) { return each([&](int i) { return a.v[i] + b.v[i]; }); }
inline Floats sub(Floats a, Floats b) { return each([&](int i) { return a.v[i] - b.v[i]; }); }
inline Floats mul(Floats a, Floats b) { return each([&](int i) { return a.v[i] * b.v[i]; }); }
inline Floats div(Floats a, Floats b) { return each([&](int i) { return a.v[i] / b.v[i]; }); }
inline Floats max(Floats a, Floats b) {
  return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline Floats fma(Floats a, Floats b, Floats c) {
  return each([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
inline Floats abs(Floats a) { return each([&](int i) { return std::fabs(a.v[i]); }); }
inline Floats round(Floats a) { return each([&](int i) { return std::nearbyint(a.v[i]); }); }

inline Floats load_half(const uint16_t* p) {
  return each([&](int i) { return lw::half_to_float(p[i]); });
}
inline void store_half(uint16_t* p, Floats x) {
  for (int i = 0; i < kLanes; ++i) p[i] = lw::nearest_half(x.v[i]);
}

inline float reduce_add(Floats x) {
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) x.v[i] += x.v[i + width];
  }
  return x.v[0];
}
inline float reduce_max(Floats x) { return *std::max_element(x.v, x.v + kLanes); }

// 2^x; exactly 0 below the normal range, exactly 1 at 0.
inline Floats exp2(Floats x) {
  return each([&](int i) { return x.v[i] >= -126.0f ? std::exp2(x.v[i]) : 0.0f; });
}

inline Floats keep_first(Floats x, int count, float other) {
  return each([&](int i) { return i < count ? x.v[i] : other; });
}

inline Floats to_floats(Ints x) { return each([&](int i) { return float(x.v[i]); }); }

inline void store_int8(int8_t* p, Floats x) {
  for (int i = 0; i < kLanes; ++i) p[i] = int8_t(std::nearbyint(x.v[i]));
}
inline void store_int16(int16_t* p, Floats x) {
  for (int i = 0; i < kLanes; ++i) p[i] = int16_t(std::nearbyint(x.v[i]));
}

inline Ints zero_ints() { return Ints{}; }
inline Sum4 zero_sum4() { return Ints{}; }

inline Bytes load_bytes(const uint8_t* p) {
  Bytes x;
  std::memcpy(x.v, p, sizeof x.v);
  return x;
}
inline void store_bytes(uint8_t* p, Bytes x) { std::memcpy(p, x.v, sizeof x.v); }
inline Bytes low_nibbles(Bytes x) {
  for (auto& byte : x.v) byte &= 15;
  return x;
}
inline Bytes high_nibbles(Bytes x) {
  for (auto& byte : x.v) byte >>= 4;
  return x;
}
inline Bytes broadcast4(const int8_t* p) {
  Bytes x;
  for (int i = 0; i < kLanes; ++i) std::memcpy(x.v + 4 * i, p, 4);
  return x;
}
inline Words load_words(const int16_t* p) {
  Words x;
  std::memcpy(x.v, p, sizeof x.v);
  return x;
}
inline Words broadcast2(const int16_t* p) {
  Words x;
  for (int i = 0; i < kLanes; ++i) std::memcpy(x.v + 2 * i, p, 4);
  return x;
}
inline Words widen_bytes(const uint8_t* p) {
  Words x;
  for (int i = 0; i < 2 * kLanes; ++i) x.v[i] = int8_t(p[i]);
  return x;
}
inline Sum4 dot4(Sum4 sum, Bytes w, Bytes x) {
  for (int i = 0; i < kLanes; ++i) {
    for (int j = 4 * i; j < 4 * i + 4; ++j) sum.v[i] += int32_t(w.v[j]) * int8_t(x.v[j]);
  }
  return sum;
}
inline Ints total(Sum4 sum) { return sum; }
inline Ints dot2(Ints sum, Words w, Words x) {
  for (int i = 0; i < kLanes; ++i) {
    sum.v[i] += int32_t(w.v[2 * i]) * x.v[2 * i] + int32_t(w.v[2 * i + 1]) * x.v[2 * i + 1];
  }
  return sum;
}

// Values on their way to or from the wire: four registers of them, in their order.
struct Four { Floats v[4]; };

inline float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
template <class F>
inline Four each_of_four(F f) {
  Four y;
  for (int r = 0; r < 4; ++r) y.v[r] = each([&](int i) { return f(r * kLanes + i); });
  return y;
}
template <class F>
inline void for_each(const Four& x, F f) {
  for (int r = 0; r < 4; ++r) {
    for (int i = 0; i < kLanes; ++i) f(r * kLanes + i, x.v[r].v[i]);
  }
}

inline Four load_floats(const float* p) {
  return each_of_four([&](int i) { return p[i]; });
}
inline void store_floats(float* p, const Four& x) {
  for_each(x, [&](int i, float value) { p[i] = value; });
}
inline Four load_halves(const uint16_t* p) {
  return each_of_four([&](int i) { return lw::half_to_float(p[i]); });
}
inline void store_halves(uint16_t* p, const Four& x) {
  for_each(x, [&](int i, float value) { p[i] = lw::nearest_half(value); });
}
inline Four load_bfloats(const uint16_t* p) {
  return each_of_four([&](int i) { return float_of(uint32_t(p[i]) << 16); });
}
// Rounds to nearest even; numbers alone.
inline void store_bfloats(uint16_t* p, const Four& x) {
  for_each(x, [&](int i, float value) {
    const uint32_t bits = bits_of(value);
    p[i] = uint16_t((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
  });
}
// Signed bytes times a factor.
inline Four load_scaled(const uint8_t* p, Floats factor) {
  return each_of_four([&](int i) { return float(int8_t(p[i])) * factor.v[i % kLanes]; });
}
// The lowest byte of every value's bits.
inline void store_low_bytes(uint8_t* p, const Four& x) {
  for_each(x, [&](int i, float value) { p[i] = uint8_t(bits_of(value)); });
}
// Other back ends multiply by the inverse and refine, with the same bits.
inline Floats divide(Floats x, Floats y, Floats) { return div(x, y); }

// Bits of magnitudes, which compare as the magnitudes do; what is no number is the largest.
inline Ints larger_bits(Ints a, Floats x) {
  for (int i = 0; i < kLanes; ++i) {
    const int32_t bits = int32_t(bits_of(x.v[i]) & 0x7fffffffu);
    a.v[i] = a.v[i] > bits ? a.v[i] : bits;
  }
  return a;
}
inline uint32_t largest_bits(Ints a) { return uint32_t(*std::max_element(a.v, a.v + kLanes)); }
// The same of `count` bfloat16, as bits of a float.
inline uint32_t largest_bits_bfloat(const uint16_t* p, int count) {
  uint16_t most = 0;
  for (int i = 0; i < count; ++i) most = std::max(most, uint16_t(p[i] & 0x7fff));
  return uint32_t(most) << 16;
}

inline void pause() { std::this_thread::yield(); }

}  // namespace simd
