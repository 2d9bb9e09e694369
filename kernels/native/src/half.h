// float16 without the processor's help.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace lw {

inline float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16;
  const uint32_t exponent = (h >> 10) & 31, mantissa = h & 1023;
  float value;
  if (exponent == 0) {
    value = float(mantissa) * 0x1p-24f;
  } else {
    const uint32_t bits = exponent == 31 ? 0x7f800000u | mantissa << 13
                                         : (exponent + 112) << 23 | mantissa << 13;
    std::memcpy(&value, &bits, 4);
  }
  uint32_t out;
  std::memcpy(&out, &value, 4);
  out |= sign;
  std::memcpy(&value, &out, 4);
  return value;
}

// Rounds to nearest even; beyond the range, infinity.
inline uint16_t nearest_half(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint16_t sign = uint16_t(bits >> 16 & 0x8000);
  const float magnitude = std::fabs(x);
  if (!(magnitude < 65520.0f)) return uint16_t(sign | (magnitude == magnitude ? 0x7c00 : 0x7e00));
  if (magnitude < 0x1p-14f) return uint16_t(sign | uint16_t(std::nearbyint(magnitude * 0x1p24f)));
  bits &= 0x7fffffffu;
  bits += 0xfffu + (bits >> 13 & 1);  // half of what is cut off, less one where the rest is even
  return uint16_t(sign | ((bits >> 13) - (112u << 10)));
}

inline bool is_exact_half(float x) { return half_to_float(nearest_half(x)) == x; }

}  // namespace lw
