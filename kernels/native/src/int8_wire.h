// Payloads of int8 blocks: encoded, settled and decoded, each in one pass over the values.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "int8_block.h"

namespace lw::wire {

constexpr int64_t kRun = 8;  // blocks at a time: values and sums stay in the first-level cache

// Steps of a run of blocks before anything is done with them: one block's wait for its division is
// the next one's search for the largest value.
template <Kind kKind>
inline void steps_of(const Value<kKind>* x, int64_t num_blocks, Step* steps) {
  for (int64_t b = 0; b < num_blocks; ++b) steps[b] = step_of(largest_of<kKind>(x + b * kBlock));
}

// The shares of all ranks: payloads, and in place of the one of rank `own` its values.
struct Shares {
  const uint8_t* const* payloads;
  int32_t num_ranks;
  int32_t own;
};

struct Sum {
  simd::Four parts[kBlock / kFour];
};

// A block of `settle_run` that is not plain.
template <Kind kKind>
inline void settle_any(Value<kKind>* x, const Shares& shares, int64_t at, uint8_t* out) {
  float total[kBlock], next[kBlock];
  uint8_t mine[kBlockBytes];
  widen_block<kKind>(x, next);
  encode_any(next, mine);
  for (int32_t r = 0; r < shares.num_ranks; ++r) {
    decode_any(r == shares.own ? mine : shares.payloads[r] + at, r == 0 ? total : next);
    for (int64_t i = 0; r > 0 && i < kBlock; ++i) total[i] += next[i];
  }
  encode_any(total, out);
  decode_any(out, next);
  narrow_block<kKind>(next, x);
}

// Whether all shares of a block are plain.
inline bool are_plain(const Shares& shares, int64_t at) {
  for (int32_t r = 0; r < shares.num_ranks; ++r) {
    if (r != shares.own && !is_plain(step_in(shares.payloads[r] + at))) return false;
  }
  return true;
}

// share(i): the values from i on.
template <class Share>
inline void add_share(Sum& total, bool is_first, const Share& share) {
  for (int64_t i = 0; i < kBlock; i += kFour) {
    const simd::Four next = share(i);
    simd::Four& sum = total.parts[i / kFour];
    if (is_first) sum = next;
    else for (int v = 0; v < 4; ++v) sum.v[v] = simd::add(sum.v[v], next.v[v]);
  }
}

// The sum of all shares of a block, each as its receivers decode it, in the order of the ranks.
// Returns: its step, never a plain one where a share is not.
template <Kind kKind>
inline Step sum_block(const Value<kKind>* x, const Step& mine, const Shares& shares, int64_t at,
                      Sum& total) {
  if (!mine.is_plain || !are_plain(shares, at)) return {};
  const Ruler own(mine);
  for (int32_t r = 0; r < shares.num_ranks; ++r) {
    if (r == shares.own) {
      add_share(total, r == 0, [&](int64_t i) {
        return own.values(own.marks(Stored<kKind>::load(x + i)));
      });
      continue;
    }
    const uint8_t* block = shares.payloads[r] + at;
    const simd::Floats size = simd::set1(step_in(block));
    add_share(total, r == 0, [&](int64_t i) { return simd::load_scaled(block + i, size); });
  }
  simd::Ints most = simd::zero_ints();
  for (const simd::Four& part : total.parts) {
    for (const simd::Floats& values : part.v) most = simd::larger_bits(most, values);
  }
  return step_of(simd::largest_bits(most));
}

// The blocks of a run's sums; in place of x what they decode to. `out` may be one of the payloads.
template <Kind kKind>
inline void settle_run(Value<kKind>* x, int64_t num_blocks, const Shares& shares, int64_t at,
                       uint8_t* out) {
  Step mine[kRun], steps[kRun];
  Sum totals[kRun];
  steps_of<kKind>(x, num_blocks, mine);
  for (int64_t b = 0; b < num_blocks; ++b) {
    steps[b] = sum_block<kKind>(x + b * kBlock, mine[b], shares, at + b * kBlockBytes, totals[b]);
  }
  for (int64_t b = 0; b < num_blocks; ++b) {
    Value<kKind>* values = x + b * kBlock;
    uint8_t* block = out + b * kBlockBytes;
    if (!steps[b].is_plain) {
      settle_any<kKind>(values, shares, at + b * kBlockBytes, block);
      continue;
    }
    const Ruler ruler(steps[b]);
    for (int64_t i = 0; i < kBlock; i += kFour) {
      const simd::Four marks = ruler.marks(totals[b].parts[i / kFour]);
      simd::store_low_bytes(block + i, marks);
      Stored<kKind>::store(values + i, ruler.values(marks));
    }
    std::memcpy(block + kBlock, &steps[b].size, 4);
  }
}

template <Kind kKind>
inline void encode_run(const Value<kKind>* x, int64_t num_blocks, uint8_t* out) {
  Step steps[kRun];
  steps_of<kKind>(x, num_blocks, steps);
  for (int64_t b = 0; b < num_blocks; ++b) {
    encode_block<kKind>(x + b * kBlock, steps[b], out + b * kBlockBytes);
  }
}

template <Kind kKind>
inline void decode_run(const uint8_t* blocks, int64_t num_blocks, Value<kKind>* out) {
  for (int64_t b = 0; b < num_blocks; ++b) {
    decode_block<kKind>(blocks + b * kBlockBytes, out + b * kBlock);
  }
}

// Calls act(values, first block, how many) for all blocks of x, a run at a time; the last block is
// padded with zeros, and where acts write to it, what they wrote is copied back.
template <class T, class Act>
inline void for_runs(T* x, int64_t count, const Act& act) {
  const int64_t num_whole = count / kBlock, rest = count % kBlock;
  for (int64_t b = 0; b < num_whole; b += kRun) {
    act(x + b * kBlock, b, num_whole - b < kRun ? num_whole - b : kRun);
  }
  if (rest == 0) return;
  std::remove_const_t<T> last[kBlock] = {};
  std::memcpy(last, x + num_whole * kBlock, rest * sizeof(T));
  act(last, num_whole, int64_t(1));
  if constexpr (!std::is_const_v<T>) std::memcpy(x + num_whole * kBlock, last, rest * sizeof(T));
}

// act(a constant of the kind)
template <class Act>
inline void with_kind(Kind kind, const Act& act) {
  if (kind == Kind::kFloat) act(std::integral_constant<Kind, Kind::kFloat>());
  else if (kind == Kind::kBfloat) act(std::integral_constant<Kind, Kind::kBfloat>());
  else act(std::integral_constant<Kind, Kind::kHalf>());
}

inline void encode(Kind kind, const void* x, int64_t count, uint8_t* out) {
  with_kind(kind, [&](auto known) {
    constexpr Kind k = decltype(known)::value;
    for_runs(static_cast<const Value<k>*>(x), count,
             [&](const Value<k>* values, int64_t first, int64_t num_blocks) {
               encode_run<k>(values, num_blocks, out + first * kBlockBytes);
             });
  });
}

inline void decode(Kind kind, const uint8_t* blocks, int64_t count, void* out) {
  with_kind(kind, [&](auto known) {
    constexpr Kind k = decltype(known)::value;
    for_runs(static_cast<Value<k>*>(out), count,
             [&](Value<k>* values, int64_t first, int64_t num_blocks) {
               decode_run<k>(blocks + first * kBlockBytes, num_blocks, values);
             });
  });
}

// Writes the payload of the sum of all shares, and in place of x, the share of this rank, what that
// payload decodes to. `out` may be one of the payloads.
inline void settle(Kind kind, void* x, int64_t count, const Shares& shares, uint8_t* out) {
  with_kind(kind, [&](auto known) {
    constexpr Kind k = decltype(known)::value;
    for_runs(static_cast<Value<k>*>(x), count,
             [&](Value<k>* values, int64_t first, int64_t num_blocks) {
               const int64_t at = first * kBlockBytes;
               settle_run<k>(values, num_blocks, shares, at, out + at);
             });
  });
}

}  // namespace lw::wire
