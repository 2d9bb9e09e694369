// The heads of attention: how new ones are turned and stored in the cache, and where it keeps them.
//
// A head's keys and values are integers with one scale a token: products of them are summed as
// integers, exactly, at twice the rate of float32. A page of a key/value head holds its keys in
// pairs of dims, (D / 2, Z, 2), their scales (Z), its values in pairs of tokens, (Z / 2, D, 2), and
// their scales (Z): scores of neighbouring keys are neighbours, and nothing is summed across lanes.
// The pages of a layer are (P, K, 2, (D + 2) Z) words; a scale takes two.
// Source: Kwon et al. 2023, arXiv:2309.06180, section 4.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "simd.h"

namespace lw {

// Largest integers of keys and values, of the weights of values, and of queries: sums of D or
// kBlock products stay below 2^31.
constexpr float kMostStored = 8191.0f;
constexpr float kMostWeight = 4095.0f;
inline float most_query(int64_t dim) { return dim <= 64 ? 4095.0f : dim <= 128 ? 2047.0f : 1023.0f; }

struct Heads {
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t page_size;
  float eps;             // of the heads' norms
  const float* q_norm;   // (D), or null
  const float* k_norm;
};

// One step. Rows lie in spans, each of consecutive positions of one sequence.
struct Step {
  int64_t num_rows;
  int64_t num_spans;
  const int32_t* positions;  // (N)
  const int32_t* row_span;   // (N)
  const int32_t* span_row;   // (S + 1)
  const int32_t* pages;      // all spans' pages
  const int32_t* span_page;  // (S + 1), where a span's pages begin
  const float* cosines;      // (positions, D / 2)
  const float* sines;
};

inline int64_t part_elements(const Heads& h) { return (h.head_dim + 2) * h.page_size; }
inline int64_t page_elements(const Heads& h) { return h.num_kv_heads * 2 * part_elements(h); }
inline int16_t* keys_at(const Heads& h, int16_t* cache, int32_t page, int64_t head) {
  return cache + page * page_elements(h) + head * 2 * part_elements(h);
}
// The scales of a page's keys or values, from where those begin.
inline float* scales_of(const Heads& h, int16_t* part) {
  return reinterpret_cast<float*>(part + h.head_dim * h.page_size);
}

inline void normalise_head(float* x, const float* weight, int64_t dim, float eps) {
  using namespace simd;
  Floats sum = zero();
  for (int64_t d = 0; d < dim; d += kLanes) sum = fma(load(x + d), load(x + d), sum);
  const Floats factor = set1(1.0f / std::sqrt(reduce_add(sum) / float(dim) + eps));
  for (int64_t d = 0; d < dim; d += kLanes) {
    store(x + d, mul(mul(load(x + d), factor), load(weight + d)));
  }
}

inline void turn_head(float* x, const float* cosines, const float* sines, int64_t dim) {
  const int64_t half = dim / 2;
  for (int64_t d = 0; d < half; ++d) {
    const float first = x[d], second = x[d + half];
    x[d] = first * cosines[d] - second * sines[d];
    x[d + half] = second * cosines[d] + first * sines[d];
  }
}

// Rounds a head to integers of at most `most`; returns their scale. Shapes: x and out (D).
inline float to_words(const float* x, int64_t dim, float most, int16_t* out) {
  using namespace simd;
  Floats largest = zero();
  for (int64_t d = 0; d < dim; d += kLanes) largest = max(largest, abs(load(x + d)));
  const float peak = reduce_max(largest);
  const Floats inverse = set1(peak > 0.0f ? most / peak : 0.0f);
  for (int64_t d = 0; d < dim; d += kLanes) store_int16(out + d, mul(load(x + d), inverse));
  return peak / most;
}

constexpr int64_t kMostDim = 256;

// A query, where its floats were: D words, then their scale.
struct QueryHead {
  const int16_t* words;
  float scale;
};
inline QueryHead query_at(const float* x, int64_t dim) {
  return {reinterpret_cast<const int16_t*>(x), x[dim / 2]};
}

// Head `index` of a row (queries, then keys, then values): norm, turn, and store: queries in place,
// the others in the cache.
inline void place_head(const Heads& h, const Step& step, int16_t* cache, float* fused, int64_t row,
                       int64_t index) {
  const int64_t dim = h.head_dim;
  float* x = fused + (row * (h.num_heads + 2 * h.num_kv_heads) + index) * dim;
  const int64_t position = step.positions[row];
  const bool is_query = index < h.num_heads;
  const bool is_key = !is_query && index < h.num_heads + h.num_kv_heads;
  if (is_query || is_key) {
    const float* weight = is_query ? h.q_norm : h.k_norm;
    if (weight != nullptr) normalise_head(x, weight, dim, h.eps);
    turn_head(x, step.cosines + position * (dim / 2), step.sines + position * (dim / 2), dim);
  }
  alignas(64) int16_t words[kMostDim];
  const float scale = to_words(x, dim, is_query ? most_query(dim) : kMostStored, words);
  if (is_query) {
    // Scores in powers of two: exp(s) = 2^(s log2(e)).
    std::memcpy(x, words, 2 * dim);
    x[dim / 2] = scale * (1.44269504f / std::sqrt(float(dim)));
    return;
  }
  const int64_t head = (index - h.num_heads) % h.num_kv_heads;
  const int32_t* pages = step.pages + step.span_page[step.row_span[row]];
  const int64_t size = h.page_size, slot = position % size;
  int16_t* out = keys_at(h, cache, pages[position / size], head);
  if (!is_key) out += part_elements(h);
  scales_of(h, out)[slot] = scale;
  if (is_key) {
    for (int64_t d = 0; d < dim; d += 2) std::memcpy(out + d * size + 2 * slot, words + d, 4);
    return;
  }
  out += slot / 2 * 2 * dim + slot % 2;
  for (int64_t d = 0; d < dim; ++d) out[2 * d] = words[d];
}

// Queries [first, end) of a span with one key/value head; rows by (query, head of the group).
struct Query {
  const Heads* heads;
  const Step* step;
  int16_t* cache;
  const float* fused;  // (N, H + 2K, D), queries as `query_at` reads them
  int64_t head;        // key/value head
  int64_t first;       // rows of the step
  int64_t end;

  int64_t group() const { return heads->num_heads / heads->num_kv_heads; }
  int64_t num_rows() const { return (end - first) * group(); }
  int32_t position(int64_t row) const { return step->positions[first + row / group()]; }
  QueryHead words(int64_t row) const {
    const int64_t width = heads->num_heads + 2 * heads->num_kv_heads, dim = heads->head_dim;
    const int64_t index = head * group() + row % group();
    return query_at(fused + ((first + row / group()) * width + index) * dim, dim);
  }
  const int32_t* pages() const {
    return step->pages + step->span_page[step->row_span[first]];
  }
};

}  // namespace lw
