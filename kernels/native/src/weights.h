// Quantised matrices: w = scale * quant + minimum, in panels of as many rows as there are lanes.
//
// A panel holds its groups of columns one after the other. A group of 4 bits: for every 8 columns,
// a byte for each (row, column of 4) with columns 0-3 in the low and 4-7 in the high nibbles. A
// group of 8 bits: for every 2 columns, a signed byte for each (row, column of 2). Then the scales
// of the rows and, where there are any, the minima, as float16 or float32. So one product reads a
// panel as one stream.
#pragma once
#include <cstdint>
#include <cstring>

#include "half.h"
#include "simd.h"

namespace lw {

struct Weight {
  const uint8_t* data;
  const float* bias;  // null: none
  int64_t num_rows;
  int64_t num_columns;
  int64_t panel_stride;  // bytes from a panel to the next: wider than it where columns are a part
  int32_t bits;         // 4 or 8
  int32_t group;        // columns that share a scale: 32, or 16 with 8 bits
  int32_t has_minima;
  int32_t has_wide_scales;  // float32 instead of float16
};

inline int64_t num_panels(const Weight& w) { return (w.num_rows + simd::kLanes - 1) / simd::kLanes; }
inline int64_t num_groups(const Weight& w) { return w.num_columns / w.group; }
inline int64_t quant_bytes(const Weight& w) { return int64_t(simd::kLanes) * w.group * w.bits / 8; }
inline int64_t scale_bytes(const Weight& w) {
  return int64_t(simd::kLanes) * (w.has_wide_scales ? 4 : 2);
}
inline int64_t group_bytes(const Weight& w) {
  return quant_bytes(w) + scale_bytes(w) * (w.has_minima ? 2 : 1);
}
inline int64_t panel_bytes(const Weight& w) { return group_bytes(w) * num_groups(w); }

struct Quants {
  const uint8_t* quants;  // (N, K): 0-15, or signed bytes
  const float* scales;    // (N, G)
  const float* minima;    // (N, G) or null
};

inline void pack_scales(uint8_t* out, const float* values, int64_t stride, int count, bool is_wide) {
  for (int lane = 0; lane < simd::kLanes; ++lane) {
    const float value = lane < count ? values[lane * stride] : 0.0f;
    if (is_wide) {
      std::memcpy(out + 4 * lane, &value, 4);
    } else {
      const uint16_t half = nearest_half(value);
      std::memcpy(out + 2 * lane, &half, 2);
    }
  }
}

inline void pack_group(uint8_t* out, const Weight& w, const uint8_t* quants, int count) {
  const int64_t stride = w.num_columns;
  if (w.bits == 4) {
    for (int block = 0; block < w.group / 8; ++block) {
      for (int lane = 0; lane < simd::kLanes; ++lane) {
        const uint8_t* row = quants + lane * stride + 8 * block;
        for (int i = 0; i < 4; ++i) *out++ = lane < count ? uint8_t(row[i] | row[i + 4] << 4) : 0;
      }
    }
    return;
  }
  for (int block = 0; block < w.group / 2; ++block) {
    for (int lane = 0; lane < simd::kLanes; ++lane) {
      const uint8_t* row = quants + lane * stride + 2 * block;
      for (int i = 0; i < 2; ++i) *out++ = lane < count ? row[i] : 0;
    }
  }
}

inline void pack_panel(uint8_t* out, const Weight& w, const Quants& from, int64_t panel) {
  const int64_t row = panel * simd::kLanes, groups = num_groups(w);
  const int64_t left = w.num_rows - row;
  const int count = left < simd::kLanes ? int(left) : simd::kLanes;
  for (int64_t g = 0; g < groups; ++g) {
    pack_group(out, w, from.quants + row * w.num_columns + g * w.group, count);
    uint8_t* scales = out + quant_bytes(w);
    const int64_t first = row * groups + g;
    pack_scales(scales, from.scales + first, groups, count, w.has_wide_scales != 0);
    if (w.has_minima) {
      scales += scale_bytes(w);
      pack_scales(scales, from.minima + first, groups, count, w.has_wide_scales != 0);
    }
    out += group_bytes(w);
  }
}

inline float scale_at(const uint8_t* scales, int lane, bool is_wide) {
  if (is_wide) {
    float value;
    std::memcpy(&value, scales + 4 * lane, 4);
    return value;
  }
  uint16_t half;
  std::memcpy(&half, scales + 2 * lane, 2);
  return half_to_float(half);
}

// One row of the matrix, multiplied out.
inline void unpack_row(float* out, const Weight& w, int64_t row) {
  const int lane = int(row % simd::kLanes);
  const uint8_t* group = w.data + row / simd::kLanes * w.panel_stride;
  for (int64_t g = 0; g < num_groups(w); ++g, group += group_bytes(w)) {
    const uint8_t* scales = group + quant_bytes(w);
    const float scale = scale_at(scales, lane, w.has_wide_scales != 0);
    const float minimum =
        w.has_minima ? scale_at(scales + scale_bytes(w), lane, w.has_wide_scales != 0) : 0.0f;
    for (int k = 0; k < w.group; ++k) {
      int quant;
      if (w.bits == 4) {
        const uint8_t byte = group[(k / 8 * simd::kLanes + lane) * 4 + k % 4];
        quant = k % 8 < 4 ? byte & 15 : byte >> 4;
      } else {
        quant = int8_t(group[(k / 2 * simd::kLanes + lane) * 2 + k % 2]);
      }
      *out++ = scale * float(quant) + minimum;
    }
  }
}

}  // namespace lw
