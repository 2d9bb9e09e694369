// The two blocks of a decoder layer: what each needs of memory, and its phases in their order.
#pragma once
#include <cstddef>
#include <cstdint>

#include "blocks.h"

namespace lw {

struct AttentionBlock {
  Norm norm;
  const Weight* qkv;
  const Weight* out;
  Heads heads;
};

struct MlpBlock {
  Norm norm;
  const Weight* gate_up;
  const Weight* down;
};

constexpr int kAttentionPhases = 6, kMlpPhases = 3;
constexpr int kLayerPhases = kAttentionPhases + kMlpPhases;
static_assert(2 * kLayerPhases <= Pool::kMaxPhases, "two layers' phases must fit");

// Cuts memory into parts of whole cache lines. Without memory it only counts.
class Carver {
 public:
  explicit Carver(void* memory) : memory_(static_cast<uint8_t*>(memory)) {}
  void* take(size_t num_bytes) {
    void* here = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += (num_bytes + 127) / 64 * 64;
    return here;
  }
  size_t used() const { return used_; }

 private:
  uint8_t* memory_;
  size_t used_ = 0;
};

struct AttentionRoom {
  Activations normed, attended;
  float* fused;  // (N, H + 2K, D)
  float* parts;
  size_t num_bytes;
};

inline AttentionRoom attention_room(const AttentionBlock& block, const Step& step, void* memory) {
  const Weight& qkv = *block.qkv;
  const Weight& out = *block.out;
  const int64_t num_rows = step.num_rows;
  const int64_t num_parts = AttentionTasks(block.heads, step).num_parts();
  Carver carver(memory);
  AttentionRoom room;
  void* at = carver.take(Activations::bytes(qkv, num_rows));
  room.normed = Activations::in(at, qkv, num_rows);
  at = carver.take(Activations::bytes(out, num_rows));
  room.attended = Activations::in(at, out, num_rows);
  room.fused = static_cast<float*>(carver.take(4 * num_rows * qkv.num_rows));
  room.parts = static_cast<float*>(carver.take(4 * num_parts * part_floats(block.heads)));
  room.num_bytes = carver.used();
  return room;
}

struct MlpRoom {
  Activations normed, activated;
  size_t num_bytes;
};

inline MlpRoom mlp_room(const MlpBlock& block, int64_t num_rows, void* memory) {
  Carver carver(memory);
  MlpRoom room;
  void* at = carver.take(Activations::bytes(*block.gate_up, num_rows));
  room.normed = Activations::in(at, *block.gate_up, num_rows);
  at = carver.take(Activations::bytes(*block.down, num_rows));
  room.activated = Activations::in(at, *block.down, num_rows);
  room.num_bytes = carver.used();
  return room;
}

// x += out(attention(qkv(norm(x)))): every thread calls it, with a room of the same memory.
inline void share_attention_block(Pool& pool, int thread, int phase, const AttentionBlock& block,
                                  const Step& step, int16_t* cache, const AttentionRoom& room,
                                  float* x) {
  const Weight& qkv = *block.qkv;
  const Weight& out = *block.out;
  const int64_t num_rows = step.num_rows;
  const AttentionCall call{block.heads, step, cache, room.fused, {nullptr, &room.attended}};
  share_norm(pool, thread, phase, x, num_rows, block.norm, room.normed);
  pool.barrier();
  share_product(pool, thread, phase + 1, qkv, room.normed, num_rows, room.fused, qkv.num_rows,
                false);
  pool.barrier();
  share_attention(pool, thread, phase + 2, call, room.parts);
  pool.barrier();
  share_product(pool, thread, phase + 5, out, room.attended, num_rows, x, out.num_rows, true);
}

// x += down(silu(gate(norm(x))) * up(norm(x))).
inline void share_mlp_block(Pool& pool, int thread, int phase, const MlpBlock& block,
                            const MlpRoom& room, int64_t num_rows, float* x) {
  const Weight& down = *block.down;
  share_norm(pool, thread, phase, x, num_rows, block.norm, room.normed);
  pool.barrier();
  share_gated(pool, thread, phase + 1, *block.gate_up, room.normed, num_rows, room.activated);
  pool.barrier();
  share_product(pool, thread, phase + 2, down, room.activated, num_rows, x, down.num_rows, true);
}

}  // namespace lw
