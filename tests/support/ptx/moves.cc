// SPDX-License-Identifier: Apache-2.0
// mov, which also packs and unpacks, and cvta between generic addresses and those of a space.
#include "tests/support/ptx/operations.h"

namespace ptx {
namespace {

template <unsigned kBits>
void move_bits(Warp& warp, const Instruction& i, std::uint32_t mask) {
  const unsigned parts = std::max(i.first_rows, static_cast<std::uint8_t>(i.rows - i.first_rows));
  const unsigned bits = kBits / parts;
  const std::uint64_t ones = bits == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << bits) - 1;
  for_lanes(mask, [&](unsigned lane) {
    if (i.first_rows > 1) {  // the lowest bits first
      const std::uint64_t all = warp.row(i.row[i.first_rows])[lane];
      for (unsigned part = 0; part < parts; ++part) {
        warp.row(i.row[part])[lane] = all >> part * bits & ones;
      }
      return;
    }
    std::uint64_t all = 0;
    for (unsigned part = 0; part < parts; ++part) {
      all |= (warp.row(i.row[1 + part])[lane] & ones) << part * bits;
    }
    warp.row(i.row[0])[lane] = all;
  });
}

template <std::uint64_t kWindow>
Operation to_generic() {
  return lanewise<std::uint64_t, std::uint64_t>([](std::uint64_t a) { return a + kWindow; });
}
template <std::uint64_t kWindow>
Operation from_generic() {
  return lanewise<std::uint64_t, std::uint64_t>([](std::uint64_t a) { return a - kWindow; });
}

}  // namespace

void add_moves(Operations& table) {
  table["mov.pred"] = lanewise<bool, bool>([](bool a) { return a; });
  for (const char* type : {"b16", "u16", "s16"})
    table[std::string("mov.") + type] = {move_bits<16>};
  for (const char* type : {"b32", "u32", "s32", "f32"}) {
    table[std::string("mov.") + type] = {move_bits<32>};
  }
  for (const char* type : {"b64", "u64", "s64", "f64"}) {
    table[std::string("mov.") + type] = {move_bits<64>};
  }
  table["cvta.to.global.u64"] = table["cvta.global.u64"] = to_generic<0>();
  table["cvta.shared.u64"] = to_generic<kSharedWindow>();
  table["cvta.to.shared.u64"] = from_generic<kSharedWindow>();
  table["cvta.local.u64"] = to_generic<kLocalWindow>();
  table["cvta.to.local.u64"] = from_generic<kLocalWindow>();
}

}  // namespace ptx
