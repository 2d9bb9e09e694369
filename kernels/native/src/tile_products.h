// Products of 16 rows at a time in matrix tiles, where the machine has them. They find the same
// integers as the products of few rows do, and scale them by the same operations in the same order:
// which of the two brought a row is not to be seen in it.
#pragma once
#include <cstdint>

#include "activations.h"

namespace lw {

#ifdef LW_TILES

// A thread's tiles while it multiplies `num_rows` rows by `w`.
class TileScope {
 public:
  TileScope(const Weight& w, int64_t num_rows)
      : shapes_(tiled_rows(num_rows) > 0, w.group) {}

 private:
  tiles::Shapes shapes_;
};

template <bool kHasMinima, bool kIsWide, bool kHas8Bits>
inline void multiply_tile(const Weight& w, const Activations& a, const uint8_t* panel,
                          const uint8_t* bytes, int64_t row, float* tile) {
  using namespace simd;
  constexpr int kRows = tiles::kRows;
  const int64_t groups = num_groups(w), stride = a.row_bytes();
  const uint8_t* x = a.quants + row * stride;
  const float* scales = a.scales + row;
  const float* sums = a.sums + row;
  const uint8_t* at = panel + quant_bytes(w);
  alignas(64) int32_t high[kRows][kLanes], low[kRows][kLanes];
  Floats y[kRows];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) y[m] = zero();
  for (int64_t g = 0; g < groups; ++g) {
    tiles::load<tiles::kLeft>(x, stride);
    tiles::load<tiles::kRight>(bytes, 64);
    tiles::clear<tiles::kSum>();
    if constexpr (kHas8Bits) {
      // A word is 256 times its signed high byte plus its unsigned low byte.
      tiles::load<tiles::kLeft + 1>(x + w.num_columns, stride);
      tiles::multiply_signed<tiles::kSum, tiles::kLeft, tiles::kRight>();
      tiles::clear<tiles::kSum + 1>();
      tiles::multiply_unsigned_signed<tiles::kSum + 1, tiles::kLeft + 1, tiles::kRight>();
      tiles::store<tiles::kSum + 1>(low, 64);
    } else {
      tiles::multiply_signed_unsigned<tiles::kSum, tiles::kLeft, tiles::kRight>();
    }
    tiles::store<tiles::kSum>(high, 64);
    const Floats scale = load_scales<kIsWide>(at);
    const Floats minimum = kHasMinima ? load_scales<kIsWide>(at + scale_bytes(w)) : zero();
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
      Ints sum = load_ints(high[m]);
      if constexpr (kHas8Bits) sum = add_ints(shift_left<8>(sum), load_ints(low[m]));
      y[m] = fma(to_floats(sum), mul(scale, set1(scales[m])), y[m]);
      if constexpr (kHasMinima) y[m] = fma(minimum, set1(sums[m]), y[m]);
    }
    x += w.group;
    bytes += kLanes * w.group;
    at += group_bytes(w);
    scales += a.padded_rows;
    sums += a.padded_rows;
  }
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) store(tile + m * kLanes, y[m]);
}

// Multiplies rows [first, first + num_rows), whole tiles.
template <bool kHasMinima, bool kIsWide>
inline void multiply_tiles(const Weight& w, const Activations& a, const uint8_t* panel,
                           const uint8_t* bytes, int64_t first, int64_t num_rows, float* tile) {
  for (int64_t row = first; row < first + num_rows; row += tiles::kRows) {
    if (w.bits == 8) multiply_tile<kHasMinima, kIsWide, true>(w, a, panel, bytes, row, tile);
    else multiply_tile<kHasMinima, kIsWide, false>(w, a, panel, bytes, row, tile);
    tile += tiles::kRows * simd::kLanes;
  }
}

#else

class TileScope {
 public:
  TileScope(const Weight&, int64_t) {}
};

template <bool, bool>
inline void multiply_tiles(const Weight&, const Activations&, const uint8_t*, const uint8_t*,
                           int64_t, int64_t, float*) {}

#endif

}  // namespace lw
