// One block of int8 values with its step, as it travels between ranks. The quick forms give the
// bits of the plain ones, which take what the quick ones cannot.
#pragma once
#include <cstdint>
#include <cstring>

#include "exchange.h"
#include "simd.h"

namespace lw::wire {

constexpr int64_t kBlock = 128;              // values that share a scale
constexpr int64_t kBlockBytes = kBlock + 4;  // on the wire
constexpr float kLargest = 127.0f;
constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: a sum with it ends in the rounded number
// How far steps and sums may be from 1 for the quick forms: their products are exact there.
constexpr float kNearest = 0x1p-64f, kFarthest = 0x1p64f;
constexpr uint32_t kInfinityBits = 0x7f800000u;
constexpr int64_t kFour = 4 * simd::kLanes;

// How values of a kind lie in memory, and how they come into registers and leave them. What is no
// number may be loaded, but not stored as bfloat16.
template <Kind kKind>
struct Stored;
template <>
struct Stored<Kind::kFloat> {
  using Value = float;
  static simd::Four load(const Value* p) { return simd::load_floats(p); }
  static void store(Value* p, const simd::Four& x) { simd::store_floats(p, x); }
};
template <>
struct Stored<Kind::kBfloat> {
  using Value = uint16_t;
  static simd::Four load(const Value* p) { return simd::load_bfloats(p); }
  static void store(Value* p, const simd::Four& x) { simd::store_bfloats(p, x); }
};
template <>
struct Stored<Kind::kHalf> {
  using Value = uint16_t;
  static simd::Four load(const Value* p) { return simd::load_halves(p); }
  static void store(Value* p, const simd::Four& x) { simd::store_halves(p, x); }
};
template <Kind kKind>
using Value = typename Stored<kKind>::Value;

// Bits of a block's largest magnitude.
template <Kind kKind>
inline uint32_t largest_of(const Value<kKind>* x) {
  if constexpr (kKind == Kind::kBfloat) return simd::largest_bits_bfloat(x, kBlock);
  simd::Ints most = simd::zero_ints();
  for (int64_t i = 0; i < kBlock; i += kFour) {
    const simd::Four four = Stored<kKind>::load(x + i);
    for (const simd::Floats& values : four.v) most = simd::larger_bits(most, values);
  }
  return simd::largest_bits(most);
}

// The step of a block. `is_plain`: values and step are numbers that the quick forms take.
struct Step {
  float size, inverse;
  bool is_plain;
};

// The sum of the shares of 64 ranks is a number then, too.
inline bool is_plain(float size) { return size >= kNearest && size <= kFarthest; }

// amax / 127, rounded up to 16 significant bits; 1 for a block of zeros.
inline Step step_of(uint32_t largest) {
  float size;
  std::memcpy(&size, &largest, 4);
  size /= kLargest;
  uint32_t bits;
  std::memcpy(&bits, &size, 4);
  bits = (bits + 0xffu) & ~0xffu;
  std::memcpy(&size, &bits, 4);
  size = size > 0.0f ? size : 1.0f;
  return {size, 1.0f / size, largest < kInfinityBits && is_plain(size)};
}

inline float step_in(const uint8_t* block) {
  float size;
  std::memcpy(&size, block + kBlock, 4);
  return size;
}

// The quick forms: values as multiples of a step, in registers.
struct Ruler {
  explicit Ruler(const Step& of)
      : step(simd::set1(of.size)), inverse(simd::set1(of.inverse)), rounder(simd::set1(kRounder)) {}

  // Floats whose lowest bytes are the rounded multiples.
  simd::Four marks(simd::Four x) const {
    for (simd::Floats& v : x.v) v = simd::add(simd::divide(v, step, inverse), rounder);
    return x;
  }
  // What is decoded from marks.
  simd::Four values(simd::Four x) const {
    for (simd::Floats& v : x.v) v = simd::mul(simd::sub(v, rounder), step);
    return x;
  }

  simd::Floats step, inverse, rounder;
};

// The plain forms take whatever there is.
template <Kind kKind>
inline void widen_block(const Value<kKind>* x, float* out) {
  for (int64_t i = 0; i < kBlock; i += kFour) {
    simd::store_floats(out + i, Stored<kKind>::load(x + i));
  }
}

template <Kind kKind>
inline void narrow_block(const float* x, Value<kKind>* out) {
  if constexpr (kKind == Kind::kBfloat) return narrow(x, kBlock, out);
  for (int64_t i = 0; i < kBlock; i += kFour) {
    Stored<kKind>::store(out + i, simd::load_floats(x + i));
  }
}

inline void encode_any(const float* x, uint8_t* out) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < kBlock; ++i) {
    uint32_t bits;
    std::memcpy(&bits, x + i, 4);
    bits &= 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  const float size = step_of(largest).size;
  for (int64_t i = 0; i < kBlock; ++i) {
    const float rounded = x[i] / size + kRounder;
    uint32_t bits;
    std::memcpy(&bits, &rounded, 4);
    out[i] = uint8_t(bits);
  }
  std::memcpy(out + kBlock, &size, 4);
}

inline void decode_any(const uint8_t* block, float* out) {
  const float size = step_in(block);
  for (int64_t i = 0; i < kBlock; ++i) out[i] = float(int8_t(block[i])) * size;
}

template <Kind kKind>
inline void encode_block(const Value<kKind>* x, const Step& step, uint8_t* out) {
  if (!step.is_plain) {
    float values[kBlock];
    widen_block<kKind>(x, values);
    encode_any(values, out);
    return;
  }
  const Ruler ruler(step);
  for (int64_t i = 0; i < kBlock; i += kFour) {
    simd::store_low_bytes(out + i, ruler.marks(Stored<kKind>::load(x + i)));
  }
  std::memcpy(out + kBlock, &step.size, 4);
}

template <Kind kKind>
inline void decode_block(const uint8_t* block, Value<kKind>* out) {
  const float size = step_in(block);
  if (!is_plain(size)) {
    float values[kBlock];
    decode_any(block, values);
    narrow_block<kKind>(values, out);
    return;
  }
  const simd::Floats step = simd::set1(size);
  for (int64_t i = 0; i < kBlock; i += kFour) {
    Stored<kKind>::store(out + i, simd::load_scaled(block + i, step));
  }
}

}  // namespace lw::wire
