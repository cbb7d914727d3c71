// SPDX-License-Identifier: Apache-2.0
#include "exec/train/safetensors.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <system_error>

#include "exec/train/data/mapped_file.h"
#include "kernels/bf16.h"
#include "sim/core/base/check.h"
#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"

namespace shardwright::exec {

namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

constexpr std::int64_t kLengthBytes = 8;
constexpr std::string_view kMetadata = "__metadata__";

struct TypeName {
  TensorType type;
  std::string_view name;
  std::int64_t bytes;
};
constexpr TypeName kTypes[] = {
    {TensorType::kBool, "BOOL", 1},      {TensorType::kU8, "U8", 1},
    {TensorType::kI8, "I8", 1},          {TensorType::kF8E5M2, "F8_E5M2", 1},
    {TensorType::kF8E4M3, "F8_E4M3", 1}, {TensorType::kI16, "I16", 2},
    {TensorType::kU16, "U16", 2},        {TensorType::kF16, "F16", 2},
    {TensorType::kBf16, "BF16", 2},      {TensorType::kI32, "I32", 4},
    {TensorType::kU32, "U32", 4},        {TensorType::kF32, "F32", 4},
    {TensorType::kI64, "I64", 8},        {TensorType::kU64, "U64", 8},
    {TensorType::kF64, "F64", 8}};

const TypeName& entry_of(TensorType type) {
  return *std::find_if(std::begin(kTypes), std::end(kTypes),
                       [&](const TypeName& entry) { return entry.type == type; });
}

/// Half precision to float, exactly.
float from_half(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 0x3ff;
  float magnitude = 0;
  if (exponent == 31) {
    magnitude = fraction == 0 ? HUGE_VALF : NAN;
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(fraction), -24);
  } else {
    magnitude = std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

[[noreturn]] void fail_errno(const std::string& file, std::string_view action) {
  const int error_number = errno;
  throw Error(fmt::format("{}: cannot {} this file: {}", file, action,
                          std::generic_category().message(error_number)));
}

/// Bytes [offset, offset + size) of the file; a short file is an error.
void read_fully(int fd, const std::string& file, std::int64_t offset, void* to, std::size_t size) {
  auto* at = static_cast<char*>(to);
  while (size > 0) {
    const ssize_t got = ::pread(fd, at, size, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno(file, "read");
    if (got == 0) {
      throw Error(fmt::format("{}: the file ends at byte {}, it was cut short", file, offset));
    }
    at += got;
    offset += got;
    size -= static_cast<std::size_t>(got);
  }
}

TensorType type_of(const JsonReader& entry) {
  const auto name = entry.require<std::string>("dtype");
  for (const TypeName& known : kTypes) {
    if (known.name == name) return known.type;
  }
  entry.fail("dtype", "a dtype of safetensors such as F32, F16 or BF16");
}

/// One entry of the header; its size in bytes agrees with shape and dtype.
StoredTensor stored_tensor(const std::string& name, const JsonReader& entry,
                           std::int64_t data_bytes) {
  entry.reject_unknown_keys({"dtype", "shape", "data_offsets"});
  StoredTensor tensor{{name, type_of(entry), {}}, 0};
  std::int64_t bytes = bytes_of(tensor.spec.type);
  bool overflow = false;
  for (const JsonReader& dimension : entry.require_array("shape")) {
    const auto size = dimension.value<std::int64_t>(at_least<std::int64_t>(0));
    tensor.spec.shape.push_back(size);
    overflow |= __builtin_mul_overflow(bytes, size, &bytes);
  }
  // A product that overflows before a zero follows is refused too: elements() multiplies likewise.
  if (overflow) entry.fail("shape", "dimensions whose product fits into 63 bits");
  const auto offsets = entry.require_list<std::int64_t>("data_offsets");
  if (offsets.size() != 2 || offsets[0] < 0 || offsets[1] < offsets[0] || offsets[1] > data_bytes) {
    entry.fail("data_offsets",
               fmt::format("a begin and an end within the {} bytes of data", data_bytes));
  }
  if (offsets[1] - offsets[0] != bytes) {
    entry.fail("data_offsets", fmt::format("{} bytes, the size of its shape and dtype", bytes));
  }
  tensor.offset = offsets[0];
  return tensor;
}

std::string header_text(std::span<const TensorSpec> tensors,
                        const std::map<std::string, std::string>& metadata,
                        const std::string& file) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[std::string(kMetadata)] = metadata;
  std::int64_t offset = 0;
  for (const TensorSpec& tensor : tensors) {
    if (header.contains(tensor.name) || tensor.name == kMetadata) {
      throw Error(fmt::format("{}: the tensor name {} is taken, expected distinct names", file,
                              tensor.name));
    }
    const std::int64_t end = offset + tensor.size_bytes();
    header[tensor.name] = {
        {"dtype", name_of(tensor.type)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception&) {
    throw Error(fmt::format("{}: a tensor name or metadata is no UTF-8 text", file));
  }
  // Readers that map the file want the data aligned; the format allows trailing spaces.
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');
  return text;
}

}  // namespace

std::string_view name_of(TensorType type) {
  return entry_of(type).name;
}
std::int64_t bytes_of(TensorType type) {
  return entry_of(type).bytes;
}

std::int64_t TensorSpec::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t dimension : shape) product *= dimension;
  return product;
}

SafetensorsHeader parse_safetensors_header(std::string_view json, std::int64_t data_bytes,
                                           const std::string& file) {
  const JsonLimits limits{.max_bytes = static_cast<std::size_t>(kMaxSafetensorsHeaderBytes),
                          .max_depth = 4};
  const JsonFile document = JsonFile::parse(json, file, limits);
  const JsonReader root = document.root();
  if (!root.is_object()) root.fail("an object of tensors");
  SafetensorsHeader header;
  for (const std::string& name : root.keys()) {
    const JsonReader entry = root.require_object(name);
    if (name == kMetadata) {
      for (const std::string& key : entry.keys()) {
        header.metadata[key] = entry.require<std::string>(key);
      }
    } else {
      header.tensors.push_back(stored_tensor(name, entry, data_bytes));
    }
  }
  // Empty tensors share their offset with the one behind them.
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const StoredTensor& a, const StoredTensor& b) {
              return std::pair(a.offset, a.spec.size_bytes()) <
                     std::pair(b.offset, b.spec.size_bytes());
            });
  std::int64_t expected = 0;
  for (const StoredTensor& tensor : header.tensors) {
    if (tensor.offset != expected) {
      throw Error(
          fmt::format("{}: tensor {} begins at byte {}, expected {}: tensors must follow "
                      "each other without holes or overlap",
                      file, tensor.spec.name, tensor.offset, expected));
    }
    expected += tensor.spec.size_bytes();
  }
  if (expected != data_bytes) {
    throw Error(
        fmt::format("{}: {} bytes of data follow the header, expected the {} of its tensors", file,
                    data_bytes, expected));
  }
  return header;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path.string()) {
  const int fd = ::open(file_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail_errno(file_, "open");
  struct Closer {
    int fd;
    ~Closer() {
      if (fd >= 0) ::close(fd);
    }
  } closer{fd};
  struct stat status {};
  if (::fstat(fd, &status) != 0) fail_errno(file_, "read");
  if (!S_ISREG(status.st_mode)) {
    throw Error(fmt::format("{}: not a regular file, expected a safetensors file", file_));
  }
  if (status.st_size < kLengthBytes) {
    throw Error(fmt::format("{}: {} bytes are too few for a safetensors file", file_,
                            static_cast<std::int64_t>(status.st_size)));
  }
  std::uint64_t length = 0;
  read_fully(fd, file_, 0, &length, sizeof length);
  const auto most =
      std::min<std::int64_t>(status.st_size - kLengthBytes, kMaxSafetensorsHeaderBytes);
  if (length > static_cast<std::uint64_t>(most)) {
    throw Error(
        fmt::format("{}: the header claims {} bytes, expected at most {}: this is no "
                    "safetensors file or it was cut short",
                    file_, length, most));
  }
  std::string json(length, '\0');
  read_fully(fd, file_, kLengthBytes, json.data(), json.size());
  data_start_ = kLengthBytes + static_cast<std::int64_t>(length);
  header_ = parse_safetensors_header(json, status.st_size - data_start_, file_);
  for (const StoredTensor& tensor : header_.tensors) by_name_[tensor.spec.name] = &tensor;
  fd_ = std::exchange(closer.fd, -1);
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : file_(std::move(other.file_)),
      fd_(std::exchange(other.fd_, -1)),
      data_start_(other.data_start_),
      header_(std::move(other.header_)),
      by_name_(std::move(other.by_name_)) {}

SafetensorsFile::~SafetensorsFile() {
  if (fd_ >= 0) ::close(fd_);
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

void SafetensorsFile::read(const StoredTensor& tensor, std::int64_t first,
                           std::span<std::byte> out) const {
  SHARDWRIGHT_CHECK(first >= 0 && first + std::ssize(out) <= tensor.spec.size_bytes(),
                    "bytes {} to {} of {}", first, first + std::ssize(out), tensor.spec.name);
  read_fully(fd_, file_, data_start_ + tensor.offset + first, out.data(), out.size());
}

void SafetensorsFile::read_floats(const StoredTensor& tensor, std::int64_t first,
                                  std::span<float> out) const {
  const TensorType type = tensor.spec.type;
  if (type == TensorType::kF32) return read(tensor, 4 * first, std::as_writable_bytes(out));
  if (type != TensorType::kBf16 && type != TensorType::kF16) {
    throw Error(fmt::format("{}: tensor {} has dtype {}, expected F32, BF16 or F16", file_,
                            tensor.spec.name, name_of(type)));
  }
  std::array<std::uint16_t, 8192> piece;
  while (!out.empty()) {
    const std::span<std::uint16_t> bits(piece.data(), std::min(piece.size(), out.size()));
    read(tensor, 2 * first, std::as_writable_bytes(bits));
    for (std::size_t i = 0; i < bits.size(); ++i) {
      out[i] = type == TensorType::kF16 ? from_half(bits[i])
                                        : kernels::to_float(kernels::BFloat16{bits[i]});
    }
    first += std::ssize(bits);
    out = out.subspan(bits.size());
  }
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::span<const TensorSpec> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : path_(path.string()) {
  const std::string header = header_text(tensors, metadata, path_);
  for (const TensorSpec& tensor : tensors) left_bytes_ += tensor.size_bytes();
  file_ = std::make_unique<AtomicFile>(path, OutputPlace::kInFolder);
  const std::uint64_t length = header.size();
  put(std::as_bytes(std::span(&length, 1)));
  put(std::as_bytes(std::span(header)));
}

void SafetensorsWriter::put(std::span<const std::byte> bytes) {
  bytes_ += std::ssize(bytes);
  crc_ = crc32(bytes, crc_);
  file_->write({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  SHARDWRIGHT_CHECK(std::ssize(bytes) <= left_bytes_, "{}: {} bytes beyond the announced tensors",
                    path_, std::ssize(bytes) - left_bytes_);
  left_bytes_ -= std::ssize(bytes);
  put(bytes);
}

void SafetensorsWriter::finish() {
  SHARDWRIGHT_CHECK(left_bytes_ == 0, "{}: {} announced bytes are not written", path_, left_bytes_);
  file_->commit();
}

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";

}  // namespace

SafetensorsModel::SafetensorsModel(const fs::path& path) : path_(path.string()) {
  if (!fs::is_directory(path)) {
    if (path.extension() == ".json") {
      read_index(path);
    } else {
      add_file(path);
    }
    return;
  }
  if (fs::exists(path / kIndexFile)) {
    read_index(path / kIndexFile);
  } else if (fs::exists(path / kSingleFile)) {
    add_file(path / kSingleFile);
  } else {
    throw Error(
        fmt::format("{}: the folder has neither {} nor {}", path_, kSingleFile, kIndexFile));
  }
}

void SafetensorsModel::add_file(const fs::path& path) {
  files_.push_back(std::make_unique<SafetensorsFile>(path));
  for (const StoredTensor& tensor : files_.back()->tensors()) {
    places_[tensor.spec.name] = {files_.back().get(), &tensor};
  }
}

void SafetensorsModel::read_index(const fs::path& index) {
  const JsonFile document = JsonFile::load(index);
  const JsonReader map = document.root().require_object("weight_map");
  std::map<std::string, const SafetensorsFile*> opened;
  for (const std::string& name : map.keys()) {
    const auto file = map.require<std::string>(name);
    // An index from elsewhere must not reach out of its folder.
    if (file.empty() || file == ".." || fs::path(file).filename() != file) {
      map.fail(name, "the name of a file in the same folder");
    }
    const SafetensorsFile*& part = opened[file];
    if (part == nullptr) {
      files_.push_back(std::make_unique<SafetensorsFile>(index.parent_path() / file));
      part = files_.back().get();
    }
    const StoredTensor* tensor = part->find(name);
    if (tensor == nullptr) map.fail(name, "a file that holds this tensor");
    places_[name] = {part, tensor};
  }
}

std::vector<std::string> SafetensorsModel::names() const {
  std::vector<std::string> result;
  for (const auto& [name, place] : places_) result.push_back(name);
  return result;
}

std::vector<std::string> SafetensorsModel::files() const {
  std::vector<std::string> paths;
  for (const auto& file : files_) paths.push_back(file->name());
  return paths;
}

const TensorSpec* SafetensorsModel::find(std::string_view name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : &found->second.tensor->spec;
}

void SafetensorsModel::read_floats(std::string_view name, std::int64_t first,
                                   std::span<float> out) const {
  const auto found = places_.find(name);
  if (found == places_.end()) throw Error(fmt::format("{}: there is no tensor {}", path_, name));
  found->second.file->read_floats(*found->second.tensor, first, out);
}

std::vector<std::vector<TensorSpec>> split_into_parts(std::span<const TensorSpec> tensors,
                                                      std::int64_t max_bytes) {
  std::vector<std::vector<TensorSpec>> parts;
  std::int64_t bytes = 0;
  for (const TensorSpec& tensor : tensors) {
    if (parts.empty() || (bytes > 0 && bytes + tensor.size_bytes() > max_bytes)) {
      parts.emplace_back();
      bytes = 0;
    }
    parts.back().push_back(tensor);
    bytes += tensor.size_bytes();
  }
  return parts;
}

void write_safetensors_model(const fs::path& folder, std::span<const TensorSpec> tensors,
                             std::int64_t max_part_bytes, const TensorSource& source) {
  const auto parts = split_into_parts(tensors, max_part_bytes);
  nlohmann::ordered_json weight_map = nlohmann::ordered_json::object();
  std::int64_t total_bytes = 0;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    const std::string name =
        parts.size() == 1 ? std::string(kSingleFile)
                          : fmt::format("model-{:05}-of-{:05}.safetensors", part + 1, parts.size());
    SafetensorsWriter writer(folder / name, parts[part]);
    for (const TensorSpec& tensor : parts[part]) {
      source(tensor, [&](std::span<const std::byte> bytes) { writer.write(bytes); });
      weight_map[tensor.name] = name;
      total_bytes += tensor.size_bytes();
    }
    writer.finish();
  }
  const fs::path index = folder / kIndexFile;
  if (parts.size() > 1) {
    const nlohmann::ordered_json document = {{"metadata", {{"total_size", total_bytes}}},
                                             {"weight_map", weight_map}};
    write_file_atomically(index, document.dump(2) + "\n", OutputPlace::kInFolder);
  } else {
    fs::remove(index);  // of a larger model that lay here before; readers would prefer it
  }
}

}  // namespace shardwright::exec
