// What ranks exchange: sums in the order of the ranks. Elements do not meet and nothing is contracted,
// so every form gives the bits of the plain one.
#pragma once
#include <cstdint>
#include <cstring>

#include "half.h"
#include "simd.h"

namespace lw::wire {

enum class Kind : int32_t { kFloat = 0, kBfloat = 1, kHalf = 2 };

constexpr int64_t kTile = 1024;              // values at a time: sums stay in the first-level cache

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

}  // namespace lw::wire
