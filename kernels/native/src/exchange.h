// What ranks exchange: sums in the order of the ranks, and int8 blocks with their scale.
// Elements do not meet and nothing is contracted, so every form gives the bits of the plain one.
#pragma once
#include <cstdint>
#include <cstring>

#include "half.h"
#include "simd.h"

namespace lw::wire {

enum class Kind : int32_t { kFloat = 0, kBfloat = 1, kHalf = 2 };

constexpr int64_t kBlock = 128;              // values that share a scale
constexpr int64_t kBlockBytes = kBlock + 4;  // on the wire
constexpr int64_t kTile = 1024;              // values at a time: sums stay in the first-level cache
constexpr float kLargest = 127.0f;
constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: a sum with it ends in the rounded number

inline void widen(const uint16_t* x, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = uint32_t(x[i]) << 16;
    std::memcpy(out + i, &bits, 4);
  }
}

// Rounds to nearest even; what is no number stays none.
inline void narrow(const float* x, int64_t count, uint16_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, x + i, 4);
    const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    out[i] = uint16_t((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
  }
}

inline void widen_half(const uint16_t* x, int64_t count, float* out) {
  int64_t i = 0;
  for (; i + simd::kLanes <= count; i += simd::kLanes) simd::store(out + i, simd::load_half(x + i));
  for (; i < count; ++i) out[i] = half_to_float(x[i]);
}

inline void narrow_half(const float* x, int64_t count, uint16_t* out) {
  int64_t i = 0;
  for (; i + simd::kLanes <= count; i += simd::kLanes) simd::store_half(out + i, simd::load(x + i));
  for (; i < count; ++i) out[i] = nearest_half(x[i]);
}

inline void to_floats(Kind kind, const void* x, int64_t first, int64_t count, float* out) {
  if (kind == Kind::kFloat) {
    std::memcpy(out, static_cast<const float*>(x) + first, 4 * count);
  } else if (kind == Kind::kBfloat) {
    widen(static_cast<const uint16_t*>(x) + first, count, out);
  } else {
    widen_half(static_cast<const uint16_t*>(x) + first, count, out);
  }
}

inline void from_floats(Kind kind, const float* x, int64_t count, void* out, int64_t first) {
  if (kind == Kind::kFloat) {
    std::memcpy(static_cast<float*>(out) + first, x, 4 * count);
  } else if (kind == Kind::kBfloat) {
    narrow(x, count, static_cast<uint16_t*>(out) + first);
  } else {
    narrow_half(x, count, static_cast<uint16_t*>(out) + first);
  }
}

// Values as floats: where they are if they are floats, else converted into `room`.
inline const float* as_floats(Kind kind, const void* x, int64_t first, int64_t count, float* room) {
  if (kind == Kind::kFloat) return static_cast<const float*>(x) + first;
  to_floats(kind, x, first, count, room);
  return room;
}

// out = parts[0] + parts[1] + ..., rounded once; also to `copy` where there is one. Each may be
// one of the parts.
inline void add_in_order(Kind kind, const void* const* parts, int32_t num_parts, int64_t count,
                         void* out, void* copy) {
  float total[kTile], room[kTile];
  for (int64_t first = 0; first < count; first += kTile) {
    const int64_t size = count - first < kTile ? count - first : kTile;
    to_floats(kind, parts[0], first, size, total);
    for (int32_t p = 1; p < num_parts; ++p) {
      const float* next = as_floats(kind, parts[p], first, size, room);
      for (int64_t i = 0; i < size; ++i) total[i] += next[i];
    }
    from_floats(kind, total, size, out, first);
    if (copy != nullptr) {
      const int64_t width = kind == Kind::kFloat ? 4 : 2;
      std::memcpy(static_cast<uint8_t*>(copy) + first * width,
                  static_cast<const uint8_t*>(out) + first * width, size * width);
    }
  }
}

// amax / 127, rounded up to 16 significant bits; 1 for a block of zeros.
inline float scale_of(const float* x) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < kBlock; ++i) {
    uint32_t bits;
    std::memcpy(&bits, x + i, 4);
    bits &= 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  float scale;
  std::memcpy(&scale, &largest, 4);
  scale /= kLargest;
  uint32_t bits;
  std::memcpy(&bits, &scale, 4);
  bits = (bits + 0xffu) & ~0xffu;
  std::memcpy(&scale, &bits, 4);
  return scale > 0.0f ? scale : 1.0f;
}

inline void encode_block(const float* x, uint8_t* out) {
  const float scale = scale_of(x);
  for (int64_t i = 0; i < kBlock; ++i) {
    const float rounded = x[i] / scale + kRounder;
    uint32_t bits;
    std::memcpy(&bits, &rounded, 4);
    out[i] = uint8_t(bits);
  }
  std::memcpy(out + kBlock, &scale, 4);
}

inline void decode_block(const uint8_t* block, float* out) {
  float scale;
  std::memcpy(&scale, block + kBlock, 4);
  for (int64_t i = 0; i < kBlock; ++i) out[i] = float(int8_t(block[i])) * scale;
}

inline void encode(Kind kind, const void* x, int64_t count, uint8_t* out) {
  float values[kBlock];
  for (int64_t first = 0; first < count; first += kBlock, out += kBlockBytes) {
    const int64_t size = count - first < kBlock ? count - first : kBlock;
    if (size < kBlock) std::memset(values, 0, sizeof(values));
    to_floats(kind, x, first, size, values);
    encode_block(values, out);
  }
}

inline void decode(Kind kind, const uint8_t* blocks, int64_t count, void* out) {
  float values[kBlock];
  for (int64_t first = 0; first < count; first += kBlock, blocks += kBlockBytes) {
    const int64_t size = count - first < kBlock ? count - first : kBlock;
    decode_block(blocks, values);
    from_floats(kind, values, size, out, first);
  }
}

// The blocks of the sum of all payloads, in their order.
inline void total_of_blocks(const uint8_t* const* payloads, int32_t num_payloads,
                            int64_t num_blocks, uint8_t* out) {
  float total[kBlock], next[kBlock];
  for (int64_t at = 0; at < num_blocks * kBlockBytes; at += kBlockBytes) {
    decode_block(payloads[0] + at, total);
    for (int32_t p = 1; p < num_payloads; ++p) {
      decode_block(payloads[p] + at, next);
      for (int64_t i = 0; i < kBlock; ++i) total[i] += next[i];
    }
    encode_block(total, out + at);
  }
}

}  // namespace lw::wire
