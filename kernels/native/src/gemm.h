// y = x W^T for quantised W: activations become integers by row and group, products are summed as
// integers within a group, and groups are added in float32 in their order. So a row's result
// depends on nothing but the row.
#pragma once
#include <algorithm>
#include <cstdint>

#include "activations.h"
#include "tile_products.h"

namespace lw {

// Weights are read once from start to end, faster than the processor's own prefetcher follows,
// which stops at every page. Distances were measured; reading beyond the end is harmless.
constexpr int64_t kAheadBytes = 3072;
inline void prefetch_stream(const uint8_t* p, int64_t num_bytes) {
  for (int64_t i = 0; i < num_bytes; i += 64) __builtin_prefetch(p + kAheadBytes + i, 0, 3);
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
  const float* scales = a.scales + row;
  const float* sums = a.sums + row;
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
      y[m] = fma(to_floats(total(sum[m])), mul(scale, set1(scales[g * a.padded_rows + m])), y[m]);
    }
    if constexpr (kHasMinima) {
      const Floats minimum = load_scales<kIsWide>(panel + 4 * kStep + kScaleBytes);
      for (int m = 0; m < kRows; ++m) y[m] = fma(minimum, set1(sums[g * a.padded_rows + m]), y[m]);
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
  const float* scales = a.scales + row;
  const float* sums = a.sums + row;
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
      y[m] = fma(to_floats(sum[m]), mul(scale, set1(scales[g * a.padded_rows + m])), y[m]);
    }
    if constexpr (kHasMinima) {
      const Floats minimum = load_scales<kIsWide>(panel);
      panel += kScaleBytes;
      for (int m = 0; m < kRows; ++m) y[m] = fma(minimum, set1(sums[g * a.padded_rows + m]), y[m]);
    }
  }
  for (int m = 0; m < kRows; ++m) store(tile + m * kLanes, y[m]);
}

inline void unpack_panel4(const Weight& w, const uint8_t* panel, uint8_t* bytes) {
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

// As tiles read them: from pairs of columns to groups of four.
inline void unpack_panel8(const Weight& w, const uint8_t* panel, uint8_t* bytes) {
  constexpr int kStep = 4 * simd::kLanes;
  for (int64_t g = 0; g < num_groups(w); ++g, panel += group_bytes(w)) {
    for (int j = 0; j < w.group / 4; ++j, bytes += kStep) {
      for (int lane = 0; lane < simd::kLanes; ++lane) {
        const uint8_t* pair = panel + j * kStep + 2 * lane;
        std::memcpy(bytes + 4 * lane, pair, 2);
        std::memcpy(bytes + 4 * lane + 2, pair + 2 * simd::kLanes, 2);
      }
    }
  }
}

constexpr int kRegisterRows = 4;    // rows that a product keeps in registers
constexpr int kUnpackFrom = 12;     // rows from which a panel's nibbles are taken apart once

template <bool kHasMinima, bool kIsWide, bool kIsUnpacked>
inline void rows4(const Weight& w, const Activations& a, const uint8_t* panel,
                  const uint8_t* bytes, int64_t first, int64_t end, float* tile) {
  int64_t row = first;
  for (; row + kRegisterRows <= end; row += kRegisterRows, tile += kRegisterRows * simd::kLanes) {
    panel4<kRegisterRows, kHasMinima, kIsWide, kIsUnpacked>(w, a, panel, bytes, row, tile);
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
  for (; row + kRegisterRows <= end; row += kRegisterRows, tile += kRegisterRows * simd::kLanes) {
    panel8<kRegisterRows, kHasMinima, kIsWide>(w, a, panel, row, tile);
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
  const int64_t tiled = tiled_rows(end - first);
  const int64_t rest = std::min(first + tiled, end);
  float* rest_tile = tile + (rest - first) * simd::kLanes;
  if (w.bits == 8) {
    if (tiled > 0) unpack_panel8(w, panel, bytes);
    multiply_tiles<kHasMinima, kIsWide>(w, a, panel, bytes, first, tiled, tile);
    rows8<kHasMinima, kIsWide>(w, a, panel, rest, end, rest_tile);
  } else if (tiled > 0 || end - first >= kUnpackFrom) {
    unpack_panel4(w, panel, bytes);
    multiply_tiles<kHasMinima, kIsWide>(w, a, panel, bytes, first, tiled, tile);
    rows4<kHasMinima, kIsWide, true>(w, a, panel, bytes, rest, end, rest_tile);
  } else {
    rows4<kHasMinima, kIsWide, false>(w, a, panel, bytes, first, end, tile);
  }
}

// Rows [first, end) times one panel into `tile` (rows, lanes), whose rows fill whole tiles; `bytes` is room for the panel
// taken apart (`unpacked_bytes`); the thread has a TileScope.
inline void multiply_panel(const Weight& w, const Activations& a, int64_t panel, int64_t first,
                           int64_t end, uint8_t* bytes, float* tile) {
  const uint8_t* data = w.data + panel * w.panel_stride;
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

inline int64_t unpacked_bytes(const Weight& w) { return w.num_columns * simd::kLanes; }

}  // namespace lw
