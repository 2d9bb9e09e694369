// y = x W^T for quantised W: activations become integers by row and group, products are summed as
// integers within a group, and groups are added in float32 in their order. So a row's result
// depends on nothing but the row.
#pragma once
#include <algorithm>
#include <cstdint>

#include "weights.h"

namespace lw {

// Activations of `num_rows` rows: int8 for weights of 4 bits (step: the group's largest value /
// 127), int16 for weights of 8 bits (/ 32767). `sums` are the groups' sums of the rounded values.
struct Activations {
  uint8_t* quants;
  float* scales;
  float* sums;
  int64_t num_columns;
  int32_t group;
  int32_t bits;  // of the weights they are made for

  static int64_t bytes(const Weight& w, int64_t num_rows) {
    const int64_t quants = num_rows * w.num_columns * (w.bits == 4 ? 1 : 2);
    return (quants + 63) / 64 * 64 + 2 * 4 * num_rows * num_groups(w) + 64;
  }
  static Activations in(void* memory, const Weight& w, int64_t num_rows) {
    Activations a;
    const int64_t quants = num_rows * w.num_columns * (w.bits == 4 ? 1 : 2);
    a.quants = static_cast<uint8_t*>(memory);
    a.scales = reinterpret_cast<float*>(a.quants + (quants + 63) / 64 * 64);
    a.sums = a.scales + num_rows * num_groups(w);
    a.num_columns = w.num_columns;
    a.group = w.group;
    a.bits = w.bits;
    return a;
  }
  int64_t groups() const { return num_columns / group; }
};

// Quantises columns [first, first + count) of a row; whole groups only.
inline void quantise(const Activations& a, int64_t row, const float* x, int64_t first, int64_t count) {
  using namespace simd;
  const float limit = a.bits == 4 ? 127.0f : 32767.0f;
  for (int64_t start = 0; start < count; start += a.group) {
    Floats largest = zero();
    for (int i = 0; i < a.group; i += kLanes) largest = max(largest, abs(load(x + start + i)));
    const float peak = reduce_max(largest);
    const float scale = peak / limit;
    const float inverse = peak > 0.0f ? limit / peak : 0.0f;
    const int64_t column = first + start;
    const int64_t at = row * a.num_columns + column;
    int64_t sum = 0;
    for (int i = 0; i < a.group; i += kLanes) {
      const Floats scaled = mul(load(x + start + i), set1(inverse));
      if (a.bits == 4) {
        int8_t* out = reinterpret_cast<int8_t*>(a.quants) + at + i;
        store_int8(out, scaled);
        for (int lane = 0; lane < kLanes; ++lane) sum += out[lane];
      } else {
        int16_t* out = reinterpret_cast<int16_t*>(a.quants) + at + i;
        store_int16(out, scaled);
        for (int lane = 0; lane < kLanes; ++lane) sum += out[lane];
      }
    }
    const int64_t group = row * a.groups() + column / a.group;
    a.scales[group] = scale;
    a.sums[group] = scale * float(sum);
  }
}

// Weights are read once from start to end, faster than the processor's own prefetcher follows,
// which stops at every page. Distances were measured; reading beyond the end is harmless.
constexpr int64_t kAheadBytes = 3072;
inline void prefetch_stream(const uint8_t* p, int64_t num_bytes) {
  for (int64_t i = 0; i < num_bytes; i += 64) __builtin_prefetch(p + kAheadBytes + i, 0, 3);
}

template <bool kIsWide>
inline simd::Floats load_scales(const uint8_t* p) {
  if constexpr (kIsWide) return simd::load(reinterpret_cast<const float*>(p));
  return simd::load_half(reinterpret_cast<const uint16_t*>(p));
}

// Rows [row, row + kRows) of a panel of 4-bit weights. With kIsUnpacked, `quants` holds the panel's
// nibbles as bytes, 32 columns by lanes a group; else they are taken apart on the way.
template <int kRows, bool kHasMinima, bool kIsWide, bool kIsUnpacked>
inline void panel4(const Weight& w, const Activations& a, const uint8_t* panel,
                   const uint8_t* bytes, int64_t row, float* tile) {
  using namespace simd;
  constexpr int kStep = 4 * kLanes;
  const int64_t groups = w.num_columns / 32;
  const int8_t* x[kRows];
  for (int m = 0; m < kRows; ++m) {
    x[m] = reinterpret_cast<const int8_t*>(a.quants) + (row + m) * a.num_columns;
  }
  const float* scales = a.scales + row * groups;
  const float* sums = a.sums + row * groups;
  Floats y[kRows];
  for (int m = 0; m < kRows; ++m) y[m] = zero();
  constexpr int64_t kScaleBytes = kLanes * (kIsWide ? 4 : 2);
  constexpr int64_t kGroupBytes = 4 * kStep + kScaleBytes * (kHasMinima ? 2 : 1);
  for (int64_t g = 0; g < groups; ++g) {
    if constexpr (!kIsUnpacked) prefetch_stream(panel, kGroupBytes);
    Sum4 sum[kRows];
    for (int m = 0; m < kRows; ++m) sum[m] = zero_sum4();
#pragma GCC unroll 1
    for (int j = 0; j < 4; ++j) {
      Bytes low, high;
      if constexpr (kIsUnpacked) {
        low = load_bytes(bytes + (8 * g + 2 * j) * kStep);
        high = load_bytes(bytes + (8 * g + 2 * j + 1) * kStep);
      } else {
        const Bytes both = load_bytes(panel + j * kStep);
        low = low_nibbles(both);
        high = high_nibbles(both);
      }
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        sum[m] = dot4(sum[m], low, broadcast4(x[m] + 32 * g + 8 * j));
        sum[m] = dot4(sum[m], high, broadcast4(x[m] + 32 * g + 8 * j + 4));
      }
    }
    const Floats scale = load_scales<kIsWide>(panel + 4 * kStep);
    for (int m = 0; m < kRows; ++m) {
      y[m] = fma(to_floats(total(sum[m])), mul(scale, set1(scales[m * groups + g])), y[m]);
    }
    if constexpr (kHasMinima) {
      const Floats minimum = load_scales<kIsWide>(panel + 4 * kStep + kScaleBytes);
      for (int m = 0; m < kRows; ++m) y[m] = fma(minimum, set1(sums[m * groups + g]), y[m]);
    }
    panel += kGroupBytes;
  }
  for (int m = 0; m < kRows; ++m) store(tile + m * kLanes, y[m]);
}

template <int kRows, bool kHasMinima, bool kIsWide>
inline void panel8(const Weight& w, const Activations& a, const uint8_t* panel, int64_t row,
                   float* tile) {
  using namespace simd;
  constexpr int kStep = 2 * kLanes;
  const int64_t groups = num_groups(w);
  const int group = w.group;
  const int16_t* x[kRows];
  for (int m = 0; m < kRows; ++m) {
    x[m] = reinterpret_cast<const int16_t*>(a.quants) + (row + m) * a.num_columns;
  }
  const float* scales = a.scales + row * groups;
  const float* sums = a.sums + row * groups;
  Floats y[kRows];
  for (int m = 0; m < kRows; ++m) y[m] = zero();
  constexpr int64_t kScaleBytes = kLanes * (kIsWide ? 4 : 2);
  for (int64_t g = 0; g < groups; ++g) {
    Ints sum[kRows];
    for (int m = 0; m < kRows; ++m) sum[m] = zero_ints();
    for (int j = 0; j < group; j += 16) {
      prefetch_stream(panel, 8 * kStep);
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        const Words words = widen_bytes(panel);
        panel += kStep;
#pragma GCC unroll 8
        for (int m = 0; m < kRows; ++m) {
          sum[m] = dot2(sum[m], words, broadcast2(x[m] + group * g + j + 2 * i));
        }
      }
    }
    const Floats scale = load_scales<kIsWide>(panel);
    panel += kScaleBytes;
    for (int m = 0; m < kRows; ++m) {
      y[m] = fma(to_floats(sum[m]), mul(scale, set1(scales[m * groups + g])), y[m]);
    }
    if constexpr (kHasMinima) {
      const Floats minimum = load_scales<kIsWide>(panel);
      panel += kScaleBytes;
      for (int m = 0; m < kRows; ++m) y[m] = fma(minimum, set1(sums[m * groups + g]), y[m]);
    }
  }
  for (int m = 0; m < kRows; ++m) store(tile + m * kLanes, y[m]);
}

inline void unpack_panel(const Weight& w, const uint8_t* panel, uint8_t* bytes) {
  using namespace simd;
  constexpr int kStep = 4 * kLanes;
  for (int64_t g = 0; g < num_groups(w); ++g, panel += group_bytes(w)) {
    for (int j = 0; j < 4; ++j, bytes += 2 * kStep) {
      const Bytes both = load_bytes(panel + j * kStep);
      store_bytes(bytes, low_nibbles(both));
      store_bytes(bytes + kStep, high_nibbles(both));
    }
  }
}

constexpr int kTileRows = 4;        // rows that a product keeps in registers
constexpr int kUnpackFrom = 12;     // rows from which a panel's nibbles are taken apart once

template <bool kHasMinima, bool kIsWide, bool kIsUnpacked>
inline void rows4(const Weight& w, const Activations& a, const uint8_t* panel,
                  const uint8_t* bytes, int64_t first, int64_t end, float* tile) {
  int64_t row = first;
  for (; row + kTileRows <= end; row += kTileRows, tile += kTileRows * simd::kLanes) {
    panel4<kTileRows, kHasMinima, kIsWide, kIsUnpacked>(w, a, panel, bytes, row, tile);
  }
  switch (end - row) {
    case 3: panel4<3, kHasMinima, kIsWide, kIsUnpacked>(w, a, panel, bytes, row, tile); break;
    case 2: panel4<2, kHasMinima, kIsWide, kIsUnpacked>(w, a, panel, bytes, row, tile); break;
    case 1: panel4<1, kHasMinima, kIsWide, kIsUnpacked>(w, a, panel, bytes, row, tile); break;
    default: break;
  }
}

template <bool kHasMinima, bool kIsWide>
inline void rows8(const Weight& w, const Activations& a, const uint8_t* panel, int64_t first,
                  int64_t end, float* tile) {
  int64_t row = first;
  for (; row + kTileRows <= end; row += kTileRows, tile += kTileRows * simd::kLanes) {
    panel8<kTileRows, kHasMinima, kIsWide>(w, a, panel, row, tile);
  }
  switch (end - row) {
    case 3: panel8<3, kHasMinima, kIsWide>(w, a, panel, row, tile); break;
    case 2: panel8<2, kHasMinima, kIsWide>(w, a, panel, row, tile); break;
    case 1: panel8<1, kHasMinima, kIsWide>(w, a, panel, row, tile); break;
    default: break;
  }
}

template <bool kHasMinima, bool kIsWide>
inline void rows_of(const Weight& w, const Activations& a, const uint8_t* panel, uint8_t* bytes,
                    int64_t first, int64_t end, float* tile) {
  if (w.bits == 8) {
    rows8<kHasMinima, kIsWide>(w, a, panel, first, end, tile);
  } else if (end - first >= kUnpackFrom) {
    unpack_panel(w, panel, bytes);
    rows4<kHasMinima, kIsWide, true>(w, a, panel, bytes, first, end, tile);
  } else {
    rows4<kHasMinima, kIsWide, false>(w, a, panel, bytes, first, end, tile);
  }
}

// Rows [first, end) times one panel into `tile` (rows, lanes); `bytes` is room for the panel's
// nibbles as bytes (`unpacked_bytes`).
inline void multiply_panel(const Weight& w, const Activations& a, int64_t panel, int64_t first,
                           int64_t end, uint8_t* bytes, float* tile) {
  const uint8_t* data = w.data + panel * panel_bytes(w);
  if (w.has_minima) {
    if (w.has_wide_scales) rows_of<true, true>(w, a, data, bytes, first, end, tile);
    else rows_of<true, false>(w, a, data, bytes, first, end, tile);
  } else {
    if (w.has_wide_scales) rows_of<false, true>(w, a, data, bytes, first, end, tile);
    else rows_of<false, false>(w, a, data, bytes, first, end, tile);
  }
  if (w.bias != nullptr) {
    float bias[simd::kLanes];
    const int64_t column = panel * simd::kLanes;
    for (int lane = 0; lane < simd::kLanes; ++lane) {
      bias[lane] = column + lane < w.num_rows ? w.bias[column + lane] : 0.0f;
    }
    for (int64_t m = 0; m < end - first; ++m) {
      float* row = tile + m * simd::kLanes;
      simd::store(row, simd::add(simd::load(row), simd::load(bias)));
    }
  }
}

inline int64_t unpacked_bytes(const Weight& w) {
  return w.bits == 4 ? w.num_columns * simd::kLanes : 0;
}

}  // namespace lw
