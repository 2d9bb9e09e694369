// Matrix tiles of Intel AMX: registers of 16 rows of 64 bytes, and products of bytes summed as
// integers. Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1,
// chapter 18.
#pragma once
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace tiles {

constexpr int kRows = 16;

// Whether this process may use tiles: Linux gives their room to those who ask.
inline bool are_allowed() {
  constexpr long kRequest = 0x1023, kTileData = 18;
  static const bool answer = syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  return answer;
}

// The registers: sums (16, 16) of 4 bytes, three of them; left factors (16, K) bytes, and right
// factors (K, 16) with 4 neighbours in K side by side, two of each.
constexpr int kSum = 0, kLeft = 3, kRight = 5;

// While it lives the thread's tiles have the shapes for K bytes; those of before return with its end.
class Shapes {
 public:
  Shapes(bool is_used, int num_bytes) : is_used_(is_used) {
    if (!is_used_) return;
    Config ours;
    ours.palette = 1;
    for (int tile = kSum; tile < kRight + 2; ++tile) {
      ours.rows[tile] = uint8_t(tile < kRight ? kRows : num_bytes / 4);
      ours.row_bytes[tile] = uint16_t(tile < kLeft || tile >= kRight ? 64 : num_bytes);
    }
    asm volatile("sttilecfg %0" : "=m"(before_));
    asm volatile("ldtilecfg %0" ::"m"(ours));
  }
  ~Shapes() {
    if (is_used_) asm volatile("ldtilecfg %0" ::"m"(before_));
  }
  Shapes(const Shapes&) = delete;
  Shapes& operator=(const Shapes&) = delete;

 private:
  struct alignas(64) Config {
    uint8_t palette = 0;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  };
  bool is_used_;
  Config before_;
};

// The compiler does not see what a tile reads and writes: hence "memory".
template <int kTile>
inline void load(const void* p, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
inline void store(void* p, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
inline void clear() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}

// kSums += left * right; the names say whether left and right are signed bytes.
template <int kSums, int kA, int kB>
inline void multiply_signed() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kA), "i"(kB));
}
template <int kSums, int kA, int kB>
inline void multiply_signed_unsigned() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kA), "i"(kB));
}
template <int kSums, int kA, int kB>
inline void multiply_unsigned_signed() {
  asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kA), "i"(kB));
}
template <int kSums, int kA, int kB>
inline void multiply_unsigned() {
  asm volatile("tdpbuud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kA), "i"(kB));
}

}  // namespace tiles
