// SPDX-License-Identifier: Apache-2.0
// The safetensors format of Hugging Face: named tensors in one file, read in slices and written as
// a stream.
//
// A file is a 64-bit little-endian header length, a JSON header {name: {dtype, shape,
// data_offsets}} and the tensors' bytes in C order without holes. Headers are untrusted: every
// length, offset and product is checked before anything is read, and tensors are fetched with
// pread, never by casting a mapping, because writers differ in how they align the data. Models of
// several files are joined by exec/train/safetensors.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/base/atomic_file.h"

namespace shardwright::exec {

enum class TensorType : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kI16,
  kU16,
  kF16,
  kBf16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64
};
std::string_view name_of(TensorType type);  // as the format spells it: "F32", "BF16", "F8_E4M3"
std::int64_t bytes_of(TensorType type);

/// A tensor to be written, or found in a file.
struct TensorSpec {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<std::int64_t> shape;  // {} is a scalar

  /// Fits an int64 in everything that parse_safetensors_header returned.
  std::int64_t elements() const;
  std::int64_t size_bytes() const { return elements() * bytes_of(type); }
};

struct StoredTensor {
  TensorSpec spec;
  std::int64_t offset = 0;  // of its first byte from the start of the data
};

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;  // by ascending offset
  std::map<std::string, std::string> metadata;
};

/// The largest header that is accepted, as in the reference implementation.
inline constexpr std::int64_t kMaxSafetensorsHeaderBytes = 100'000'000;

/// Checks and reads the JSON header of a file with `data_bytes` of tensor data; `file` is named in
/// errors. Throws Error when the text is no such header, names repeat, offsets overlap, leave holes
/// or reach beyond the data, or do not match shape and dtype.
SafetensorsHeader parse_safetensors_header(std::string_view json, std::int64_t data_bytes,
                                           const std::string& file);

class SafetensorsFile {
 public:
  /// Opens and checks the header. Throws Error naming the file and what is wrong.
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) = delete;

  const std::string& name() const { return file_; }
  const std::vector<StoredTensor>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  /// Null when there is none of this name.
  const StoredTensor* find(std::string_view name) const;

  /// Bytes [first, first + out.size()) of a tensor. May be called from several threads.
  void read(const StoredTensor& tensor, std::int64_t first, std::span<std::byte> out) const;
  /// Elements [first, first + out.size()) of an F32, BF16 or F16 tensor as floats. Throws Error for
  /// other types.
  void read_floats(const StoredTensor& tensor, std::int64_t first, std::span<float> out) const;

 private:
  std::string file_;
  int fd_ = -1;
  std::int64_t data_start_ = 0;
  SafetensorsHeader header_;
  std::map<std::string_view, const StoredTensor*> by_name_;
};

/// Writes one file from front to back; it appears under its name only when finish() is reached.
class SafetensorsWriter {
 public:
  /// Writes the header. Tensors lie in the file in the order given. Throws Error when a name
  /// repeats or is no UTF-8, or the file cannot be created.
  SafetensorsWriter(const std::filesystem::path& path, std::span<const TensorSpec> tensors,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
  /// The next bytes of the data, in pieces of any size.
  void write(std::span<const std::byte> bytes);
  /// Makes the file durable and visible. All bytes that the header announces must be written.
  void finish();
  /// Of all that was given to the file, as it lay in memory.
  std::int64_t bytes() const { return bytes_; }
  std::uint32_t crc() const { return crc_; }

 private:
  void put(std::span<const std::byte> bytes);

  std::unique_ptr<AtomicFile> file_;
  std::string path_;
  std::int64_t left_bytes_ = 0, bytes_ = 0;
  std::uint32_t crc_ = 0;
};

// A model's tensors across one or several safetensors files.
//
// Reads a single file, an index (model.safetensors.index.json) or a folder with either; writes a
// folder the way Hugging Face transformers does: one file, or numbered parts with an index when the
// model is larger than a part may be.

class SafetensorsModel {
 public:
  /// Throws Error when a file is missing or wrong, when the index names a tensor that its file
  /// lacks, or a file outside the folder.
  explicit SafetensorsModel(const std::filesystem::path& path);

  /// All tensors, by name.
  std::vector<std::string> names() const;
  /// Paths of the files that hold them.
  std::vector<std::string> files() const;
  /// The tensor's dtype and shape; null when there is none of this name.
  const TensorSpec* find(std::string_view name) const;
  /// As SafetensorsFile::read_floats. Throws Error when there is no such tensor.
  void read_floats(std::string_view name, std::int64_t first, std::span<float> out) const;

 private:
  struct Place {
    const SafetensorsFile* file;
    const StoredTensor* tensor;
  };
  void add_file(const std::filesystem::path& path);
  void read_index(const std::filesystem::path& index);

  std::string path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Place, std::less<>> places_;
};

/// Splits tensors into parts of at most `max_bytes` each, in order; a larger tensor is a part
/// alone.
std::vector<std::vector<TensorSpec>> split_into_parts(std::span<const TensorSpec> tensors,
                                                      std::int64_t max_bytes);

/// Gives the bytes of a tensor in order, in calls of any size.
using TensorSource =
    std::function<void(const TensorSpec&, const std::function<void(std::span<const std::byte>)>&)>;

/// Writes model.safetensors, or its parts and then the index, into an existing folder.
void write_safetensors_model(const std::filesystem::path& folder,
                             std::span<const TensorSpec> tensors, std::int64_t max_part_bytes,
                             const TensorSource& source);

}  // namespace shardwright::exec
