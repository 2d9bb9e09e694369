// Attention of 16 rows at a time in matrix tiles, where the machine has them. Words are taken apart
// into signed high and unsigned low bytes; four products of bytes give back the very integer that a
// product of words gives, modulo 2^32, and the sums stay below 2^31. Everything else is shared with
// the attention of few rows, so the bits are the same.
#pragma once
#include <cstdint>

#include "softmax.h"

namespace lw {

#ifdef LW_TILES

inline bool has_tiles_for(int64_t dim) { return dim % 64 == 0 && tiles::are_allowed(); }
constexpr int64_t kTileRows = tiles::kRows;

// Bytes 0 of all lanes of 32 bits of two vectors, or bytes 1 with `byte` 1.
inline __m256i bytes_of(__m512i first, __m512i second, int byte) {
  const __m512i lanes = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0x7c787470, 0x6c686460, 0x5c585450,
                                         0x4c484440, 0x3c383430, 0x2c282420, 0x1c181410, 0x0c080400);
  const __m512i index = _mm512_add_epi8(lanes, _mm512_set1_epi8(char(byte)));
  return _mm512_castsi512_si256(_mm512_permutex2var_epi8(first, index, second));
}

inline __m512i joined(__m256i low, __m256i high) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

// Low and high bytes of two vectors of words: of each two neighbours of `a` and then of `b`, four
// bytes side by side, as a right factor wants them.
inline void split_pairs(const int16_t* a, const int16_t* b, uint8_t* high, uint8_t* low) {
  const __m512i bytes = _mm512_set4_epi32(0x4e4c0e0c, 0x4a480a08, 0x46440604, 0x42400200);
  const __m512i lanes = _mm512_set_epi32(
      0x30303030, 0x30303030, 0x30303030, 0x30303030, 0x20202020, 0x20202020, 0x20202020,
      0x20202020, 0x10101010, 0x10101010, 0x10101010, 0x10101010, 0, 0, 0, 0);
  const __m512i low_index = _mm512_add_epi8(bytes, lanes);
  const __m512i high_index = _mm512_add_epi8(low_index, _mm512_set1_epi8(1));
  const __m512i first = _mm512_loadu_si512(a), second = _mm512_loadu_si512(b);
  _mm512_storeu_si512(low, _mm512_permutex2var_epi8(first, low_index, second));
  _mm512_storeu_si512(high, _mm512_permutex2var_epi8(first, high_index, second));
}

// Low and high bytes of 64 words in their order.
inline void split_row(const int16_t* words, uint8_t* high, uint8_t* low) {
  const __m512i first = _mm512_loadu_si512(words), second = _mm512_loadu_si512(words + 32);
  _mm512_storeu_si512(low, joined(_mm512_cvtepi16_epi8(first), _mm512_cvtepi16_epi8(second)));
  _mm512_storeu_si512(high, joined(_mm512_cvtepi16_epi8(_mm512_srli_epi16(first, 8)),
                                   _mm512_cvtepi16_epi8(_mm512_srli_epi16(second, 8))));
}

// What a unit of attention keeps apart in bytes. A plane of a row is 64 bytes for every 64 dims.
struct TileRoom {
  uint8_t* queries;  // (rows, D / 64, high and low, 64)
  uint8_t* keys;     // (strips, D / 64, high and low, 16, 64)
  uint8_t* values;   // (D / 16, high and low, 16, 64)

  static int64_t bytes(int64_t dim, int64_t num_rows) {
    return has_tiles_for(dim) ? 2 * dim * (num_rows + 2 * kBlock) + 64 : 0;
  }
  static TileRoom in(void* memory, int64_t dim, int64_t num_rows) {
    auto* at = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(memory) + 63) / 64 * 64);
    return {at, at + 2 * dim * num_rows, at + 2 * dim * (num_rows + kBlock)};
  }
};

// Takes a query apart: `row` counts the unit's rows.
inline void split_query(const TileRoom& room, int64_t row, const QueryHead& q, int64_t dim) {
  uint8_t* out = room.queries + row * 2 * dim;
  for (int64_t d = 0; d < dim; d += 64) split_row(q.words + d, out + 2 * d, out + 2 * d + 64);
}

// Takes a block's keys and values apart.
inline void split_block(const TileRoom& room, const Block& block, int num_strips, int64_t dim) {
  for (int s = 0; s < num_strips; ++s) {
    uint8_t* keys = room.keys + s * 2 * kStrip * dim;
    for (int64_t d = 0; d < dim; d += 4) {
      const int16_t* pair = block.keys[s] + d / 2 * block.pair_stride;
      uint8_t* high = keys + d / 64 * 2048 + d % 64 * 16;
      split_pairs(pair, pair + block.pair_stride, high, high + 1024);
    }
    for (int t = 0; t < kStrip; t += 4) {
      const int16_t* pair = block.values[s] + t * dim;
      for (int64_t d = 0; d < dim; d += 16) {
        uint8_t* high = room.values + d / 16 * 2048 + (s * kStrip + t) * 16;
        split_pairs(pair + 2 * d, pair + 2 * dim + 2 * d, high, high + 1024);
      }
    }
  }
}

// Three sums of products of bytes, and the integers that they make.
struct TileSums {
  alignas(64) int32_t high[kTileRows][16], middle[kTileRows][16], low[kTileRows][16];

  static void clear() {
    tiles::clear<tiles::kSum>();
    tiles::clear<tiles::kSum + 1>();
    tiles::clear<tiles::kSum + 2>();
  }
  // Left factors are loaded; `right` holds a plane of high and one of low bytes.
  static void add(const uint8_t* right) {
    constexpr int kLeftLow = tiles::kLeft + 1, kRightLow = tiles::kRight + 1;
    tiles::load<tiles::kRight>(right, 64);
    tiles::load<kRightLow>(right + 1024, 64);
    tiles::multiply_signed<tiles::kSum, tiles::kLeft, tiles::kRight>();
    tiles::multiply_signed_unsigned<tiles::kSum + 1, tiles::kLeft, kRightLow>();
    tiles::multiply_unsigned_signed<tiles::kSum + 1, kLeftLow, tiles::kRight>();
    tiles::multiply_unsigned<tiles::kSum + 2, kLeftLow, kRightLow>();
  }
  void take() {
    tiles::store<tiles::kSum>(high, 64);
    tiles::store<tiles::kSum + 1>(middle, 64);
    tiles::store<tiles::kSum + 2>(low, 64);
  }
  simd::Floats row(int r) const {
    using namespace simd;
    const Ints upper = add_ints(shift_left<16>(load_ints(high[r])), shift_left<8>(load_ints(middle[r])));
    return to_floats(add_ints(upper, load_ints(low[r])));
  }
};

inline void score_tile(const TileRoom& room, int64_t first_row, const RowTile<kTileRows>& rows,
                       const Block& block, int num_strips, int64_t dim, float (*scores)[kBlock]) {
  using namespace simd;
  TileSums sums;
  const uint8_t* queries = room.queries + first_row * 2 * dim;
  for (int s = 0; s < num_strips; ++s) {
    TileSums::clear();
    for (int64_t d = 0; d < dim; d += 64) {
      tiles::load<tiles::kLeft>(queries + 2 * d, 2 * dim);
      tiles::load<tiles::kLeft + 1>(queries + 2 * d + 64, 2 * dim);
      TileSums::add(room.keys + s * 2 * kStrip * dim + d / 64 * 2048);
    }
    sums.take();
    const Floats scale = load(block.key_scales[s]);
    for (int r = 0; r < kTileRows; ++r) {
      store(scores[r] + s * kStrip, mul(sums.row(r), mul(scale, set1(rows.queries[r].scale))));
    }
  }
}

// Weights of a block's values for a tile of rows, taken apart; see `Weights`.
struct TileWeights {
  alignas(64) uint8_t high[kTileRows][kBlock];
  alignas(64) uint8_t low[kTileRows][kBlock];
  alignas(64) float scales[kTileRows];
  alignas(64) float corrections[kTileRows];
};

// Integers of a row's weights: shapes (64) and (64).
inline void round_weights(const float* x, float inverse, uint8_t* high, uint8_t* low) {
  __m512i rounded[kBlock / 16];
  for (int v = 0; v < kBlock / 16; ++v) {
    rounded[v] = _mm512_cvtps_epi32(simd::mul(simd::load(x + 16 * v), simd::set1(inverse)));
  }
  _mm512_store_si512(low, joined(bytes_of(rounded[0], rounded[1], 0),
                                 bytes_of(rounded[2], rounded[3], 0)));
  _mm512_store_si512(high, joined(bytes_of(rounded[0], rounded[1], 1),
                                  bytes_of(rounded[2], rounded[3], 1)));
}

// What `weigh` does, for 16 rows at once; `scores` are changed.
inline void weigh_tile(const Block& block, const RowTile<kTileRows>& rows, int num_strips,
                       float (*scores)[kBlock], TileWeights& out) {
  using namespace simd;
  const auto larger = [](Floats a, Floats b) { return max(a, b); };
  alignas(64) float before[kTileRows], peaks[kTileRows], sums[kTileRows];
  Floats largest[kTileRows], sum[kTileRows], heaviest[kTileRows];
  for (int r = 0; r < kTileRows; ++r) {
    before[r] = rows.partials[r]->largest;
    sums[r] = rows.partials[r]->sum;
    const int64_t seen = rows.positions[r] - block.start + 1;
    largest[r] = set1(-INFINITY);
    for (int v = 0; v < num_strips; ++v) {
      Floats x = load(scores[r] + 16 * v);
      if (seen < (v + 1) * 16) {
        x = keep_first(x, int(std::max<int64_t>(seen - 16 * v, 0)), -INFINITY);
        store(scores[r] + 16 * v, x);
      }
      largest[r] = max(largest[r], x);
    }
  }
  const Floats peak = max(load(before), reduce_rows(largest, larger));
  store(peaks, peak);
  for (int r = 0; r < kTileRows; ++r) {
    sum[r] = heaviest[r] = zero();
    const bool is_blind = rows.positions[r] < block.start;
    for (int v = 0; v < kBlock / 16; ++v) {
      Floats x = zero();
      if (v < num_strips && !is_blind) {
        x = exp2(sub(load(scores[r] + 16 * v), set1(peaks[r])));
        sum[r] = add(sum[r], x);
        x = mul(x, load(block.value_scales[v]));
        heaviest[r] = max(heaviest[r], x);
      }
      store(scores[r] + 16 * v, x);
    }
  }
  const Floats most = reduce_rows(heaviest, larger);
  alignas(64) float inverses[kTileRows];
  store(inverses, select_positive(most, div(set1(kMostWeight), most)));
  store(out.scales, div(most, set1(kMostWeight)));
  // A row that has seen nothing yet has nothing to correct: 2^NaN is 0 here.
  const Floats correction = exp2(sub(load(before), peak));
  store(out.corrections, correction);
  const Floats added = reduce_rows(sum, [](Floats a, Floats b) { return add(a, b); });
  store(sums, add(mul(load(sums), correction), added));
  for (int r = 0; r < kTileRows; ++r) {
    rows.partials[r]->largest = peaks[r];
    rows.partials[r]->sum = sums[r];
    round_weights(scores[r], inverses[r], out.high[r], out.low[r]);
  }
}

inline void add_values_tile(const TileRoom& room, const TileWeights& weights,
                            const RowTile<kTileRows>& rows, int64_t dim) {
  using namespace simd;
  tiles::load<tiles::kLeft>(weights.high, kBlock);
  tiles::load<tiles::kLeft + 1>(weights.low, kBlock);
  TileSums sums;
  for (int64_t d = 0; d < dim; d += 16) {
    TileSums::clear();
    TileSums::add(room.values + d / 16 * 2048);
    sums.take();
    for (int r = 0; r < kTileRows; ++r) {
      float* at = rows.partials[r]->acc + d;
      const Floats before = mul(load(at), set1(weights.corrections[r]));
      store(at, fma(sums.row(r), set1(weights.scales[r]), before));
    }
  }
}

// A tile of rows against one block, both taken apart; `first_row` counts the unit's rows.
inline void attend_tile(const TileRoom& room, int64_t first_row, const RowTile<kTileRows>& rows,
                        const Block& block, int64_t dim) {
  alignas(64) float scores[kTileRows][kBlock];
  TileWeights weights;
  const int num_strips = num_strips_for(block, rows.positions[kTileRows - 1]);
  score_tile(room, first_row, rows, block, num_strips, dim, scores);
  weigh_tile(block, rows, num_strips, scores, weights);
  add_values_tile(room, weights, rows, dim);
}

// Takes the queries apart and shapes the thread's tiles while it lives.
class TileAttention {
 public:
  TileAttention(const Query& query, void* memory)
      : is_used_(has_tiles_for(query.heads->head_dim) && query.num_rows() >= kTileRows),
        shapes_(is_used_, 64),
        room_(TileRoom::in(memory, query.heads->head_dim, query.num_rows())) {
    if (!is_used_) return;
    for (int64_t row = 0; row < query.num_rows(); ++row) {
      split_query(room_, row, query.words(row), query.heads->head_dim);
    }
  }
  const TileRoom* room() const { return is_used_ ? &room_ : nullptr; }

 private:
  bool is_used_;
  tiles::Shapes shapes_;
  TileRoom room_;
};

// Whole tiles of a query's rows against one block; returns the first row that is left.
inline int64_t attend_in_tiles(const Query& query, const TileRoom* room, const Block& block,
                               int64_t last, Partial* parts) {
  if (room == nullptr) return 0;
  const int64_t dim = query.heads->head_dim;
  split_block(*room, block, num_strips_for(block, last - 1), dim);
  int64_t first = 0;
  for (; first + kTileRows <= query.num_rows(); first += kTileRows) {
    const RowTile<kTileRows> rows(query, first, kTileRows, parts);
    if (rows.positions[kTileRows - 1] >= block.start) attend_tile(*room, first, rows, block, dim);
  }
  return first;
}

#else

struct TileRoom {
  static int64_t bytes(int64_t, int64_t) { return 0; }
};

class TileAttention {
 public:
  TileAttention(const Query&, void*) {}
  const TileRoom* room() const { return nullptr; }
};

inline int64_t attend_in_tiles(const Query&, const TileRoom*, const Block&, int64_t, Partial*) {
  return 0;
}

#endif

}  // namespace lw
