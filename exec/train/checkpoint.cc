// SPDX-License-Identifier: Apache-2.0
#include "exec/train/checkpoint.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <utility>

#include "exec/train/data/checksum.h"
#include "exec/train/data/mapped_file.h"
#include "sim/core/base/check.h"
#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"
#include "sim/core/base/read_file.h"

namespace shardwright::exec {
namespace {

namespace fs = std::filesystem;

constexpr const char* kManifest = "checkpoint.json";
constexpr std::size_t kMostManifestBytes = std::size_t{64} << 20;

/// "parameter:NAME:OFFSET" in two: the part before the last colon, and the offset.
std::optional<std::pair<std::string, std::int64_t>> split_key(const std::string& key) {
  const std::size_t colon = key.rfind(':');
  if (colon == std::string::npos) return std::nullopt;
  const std::optional<std::int64_t> offset = parse_int64(std::string_view(key).substr(colon + 1));
  if (!offset || *offset < 0) return std::nullopt;
  return std::pair(key.substr(0, colon), *offset);
}

/// Whether `shape` elements from `offset` on are rows of columns within the matrix.
bool is_rectangle_of(const CheckpointTensor& matrix, std::int64_t offset,
                     const std::vector<std::int64_t>& shape) {
  const std::int64_t rows = matrix.shape[0], cols = matrix.shape[1];
  std::int64_t size = 0;
  if (rows < 1 || cols < 1 || __builtin_mul_overflow(rows, cols, &size) || offset >= size)
    return false;
  return shape[1] >= 1 && shape[1] <= cols - offset % cols && shape[0] <= rows - offset / cols;
}

}  // namespace

std::string_view name_of(StateKind kind) {
  switch (kind) {
    case StateKind::kParameter:
      return "parameter";
    case StateKind::kFirstMoment:
      return "first_moment";
    case StateKind::kSecondMoment:
      return "second_moment";
  }
  return "unknown";
}

void require_checksum(const fs::path& path, std::uint32_t expected) {
  const MappedFile mapped(path);
  const std::uint32_t found = crc32(mapped.bytes());
  if (found == expected) return;
  throw Error(fmt::format("{}: the checksum is {:08x}, expected {:08x}: the file was altered",
                          mapped.name(), found, expected));
}

Checkpoint::Checkpoint(const fs::path& folder) : folder_(folder) {
  const fs::path manifest = folder_ / kManifest;
  if (!fs::is_directory(folder_)) {
    throw Error(fmt::format("{}: no such folder, expected a checkpoint", folder_.string()));
  }
  manifest_ = parse_manifest(read_file(manifest, kMostManifestBytes), manifest.string());
  for (const CheckpointFile& file : manifest_.files) {
    const fs::path path = folder_ / file.name;
    std::error_code missing;
    const auto bytes = static_cast<std::int64_t>(fs::file_size(path, missing));
    if (missing) throw Error(fmt::format("{}: this file of the checkpoint lacks", path.string()));
    if (bytes != file.bytes) {
      throw Error(fmt::format("{}: {} bytes, expected {}: the file was {}", path.string(), bytes,
                              file.bytes, bytes < file.bytes ? "cut short" : "altered"));
    }
    files_.push_back(std::make_unique<SafetensorsFile>(path));
    index_file(*files_.back());
  }
  require_whole_tensors();
}

void Checkpoint::index_file(const SafetensorsFile& file) {
  for (const StoredTensor& stored : file.tensors()) {
    const auto key = split_key(stored.spec.name);
    const std::vector<std::int64_t>& shape = stored.spec.shape;
    const CheckpointTensor* matrix = key && shape.size() == 2 ? matrix_of(key->first) : nullptr;
    if (!key || (shape.size() != 1 && !(matrix && is_rectangle_of(*matrix, key->second, shape)))) {
      throw Error(
          fmt::format("{}: tensor '{}' [{}] is no part of a checkpoint, expected KIND:NAME:OFFSET "
                      "with one dimension, or with two of a part of a matrix",
                      folder_.string(), stored.spec.name, fmt::join(shape, ", ")));
    }
    const std::int64_t rows = matrix ? shape[0] : 1, cols = shape.back();
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t first = key->second + (matrix ? row * matrix->shape[1] : 0);
      pieces_[key->first].push_back({first, cols, row * cols, &file, &stored});
    }
  }
}

/// The matrix that a key is of; null: it is of none.
const CheckpointTensor* Checkpoint::matrix_of(std::string_view key) const {
  const std::string_view name = key.substr(std::min(key.find(':') + 1, key.size()));
  for (const CheckpointTensor& tensor : manifest_.tensors) {
    if (tensor.name == name) return tensor.shape.size() == 2 ? &tensor : nullptr;
  }
  return nullptr;
}

void Checkpoint::require_whole_tensors() {
  for (auto& [key, pieces] : pieces_) {
    std::sort(pieces.begin(), pieces.end(),
              [](const Piece& a, const Piece& b) { return a.first < b.first; });
  }
  for (const CheckpointTensor& tensor : manifest_.tensors) {
    std::int64_t size = 1;
    for (const std::int64_t n : tensor.shape) {
      if (n < 0 || __builtin_mul_overflow(size, n, &size)) size = -1;
    }
    for (const StateKind kind : kStateKinds) {
      const std::string key = fmt::format("{}:{}", name_of(kind), tensor.name);
      std::int64_t covered = 0;
      for (const Piece& piece : pieces_[key]) {
        if (piece.first != covered) break;
        covered += piece.count;
      }
      if (covered != size) {
        throw Error(fmt::format("{}: {} of {} is not whole, its files hold {} elements of {}",
                                folder_.string(), name_of(kind), tensor.name, covered, size));
      }
    }
  }
}

void Checkpoint::verify(std::int64_t part, std::int64_t parts) const {
  for (std::size_t i = static_cast<std::size_t>(part); i < manifest_.files.size();
       i += static_cast<std::size_t>(parts)) {
    require_checksum(folder_ / manifest_.files[i].name, manifest_.files[i].crc);
  }
}

void Checkpoint::read(StateKind kind, std::string_view tensor, std::int64_t first,
                      std::span<float> out) const {
  const auto found = pieces_.find(fmt::format("{}:{}", name_of(kind), tensor));
  SHARDWRIGHT_CHECK(found != pieces_.end(), "the checkpoint has {}", tensor);
  const std::vector<Piece>& pieces = found->second;
  auto at =
      std::upper_bound(pieces.begin(), pieces.end(), first,
                       [](std::int64_t element, const Piece& p) { return element < p.first; });
  if (at != pieces.begin()) --at;
  for (; at != pieces.end(); ++at) {
    if (out.empty()) return;
    const std::int64_t within = first - at->first;
    if (within < 0 || within >= at->count) continue;
    const auto count =
        static_cast<std::size_t>(std::min<std::int64_t>(at->count - within, std::ssize(out)));
    at->file->read_floats(*at->stored, at->offset + within, out.first(count));
    out = out.subspan(count);
    first += static_cast<std::int64_t>(count);
  }
  SHARDWRIGHT_CHECK(out.empty(), "{} elements of {} lack", out.size(), tensor);
}

}  // namespace shardwright::exec
