// SPDX-License-Identifier: Apache-2.0
#include "exec/train/data/checksum.h"

#include <zlib.h>

namespace shardwright::exec {

std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t so_far) {
  return static_cast<std::uint32_t>(
      ::crc32_z(so_far, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()));
}

std::uint32_t crc32(std::string_view text, std::uint32_t so_far) {
  return crc32(std::as_bytes(std::span(text)), so_far);
}

}  // namespace shardwright::exec
