// SPDX-License-Identifier: Apache-2.0
#include "exec/train/checkpoint.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "exec/comm/bootstrap.h"
#include "exec/train/data/mapped_file.h"
#include "sim/core/base/atomic_file.h"
#include "sim/core/base/check.h"
#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"
#include "sim/core/base/parse_number.h"
#include "sim/core/base/read_file.h"
#include "sim/core/plan_json.h"

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

// Which checkpoints there are, and how one comes and goes: by renaming, so that a folder with the
// name of a checkpoint is always a whole one.

namespace {

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kUnfinished = ".writing-";
constexpr std::string_view kRemoved = ".removing-";
constexpr std::string_view kAbandoned = "abandoned-";
// Of files that are made only to see that they can be, and their temporaries (AtomicFile).
constexpr std::array<std::string_view, 3> kProbes = {kSharedProbe, "..shared-", ".probe."};

/// The step of a checkpoint's folder, or -1.
std::int64_t step_of(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kPrefix)) return -1;
  const std::string_view digits = std::string_view(name).substr(kPrefix.size());
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string_view::npos) return -1;
  return parse_int64(digits).value_or(-1);
}

/// Out of sight first, so that a kill in between leaves no half checkpoint under its name.
void remove_checkpoint(const fs::path& path) {
  const fs::path hidden =
      path.parent_path() / fmt::format("{}{}", kRemoved, path.filename().string());
  std::error_code ignored;
  fs::remove_all(hidden, ignored);
  fs::rename(path, hidden, ignored);
  fs::remove_all(hidden, ignored);
}

}  // namespace

std::string checkpoint_name(std::int64_t step) {
  return fmt::format("{}{:06}", kPrefix, step);
}

std::vector<fs::path> list_checkpoints(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    // A link leads to a folder that this run has not written.
    if (step_of(entry.path()) < 0 || entry.is_symlink(ignored)) continue;
    if (entry.is_directory(ignored)) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end(),
            [](const fs::path& a, const fs::path& b) { return step_of(a) > step_of(b); });
  return found;
}

void prune_checkpoints(const fs::path& folder, std::int64_t keep) {
  if (keep <= 0) return;
  const std::vector<fs::path> all = list_checkpoints(folder);
  for (std::size_t i = static_cast<std::size_t>(keep); i < all.size(); ++i) {
    remove_checkpoint(all[i]);
  }
}

void remove_unfinished_checkpoints(const fs::path& folder) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    const bool probes = std::any_of(kProbes.begin(), kProbes.end(), [&](std::string_view prefix) {
      return name.starts_with(prefix);
    });
    if (probes || name.starts_with(kUnfinished) || name.starts_with(kRemoved)) {
      fs::remove_all(entry.path(), ignored);
    }
  }
}

std::int64_t set_aside_checkpoints(const fs::path& folder, std::int64_t step) {
  std::int64_t count = 0;
  for (const fs::path& path : list_checkpoints(folder)) {
    if (step_of(path) <= step) break;
    const fs::path aside = folder / fmt::format("{}{}", kAbandoned, path.filename().string());
    std::error_code refused;
    fs::remove_all(aside, refused);
    fs::rename(path, aside, refused);
    if (refused) {
      throw Error(
          fmt::format("{}: cannot set this checkpoint aside: {}", path.string(), refused.message()),
          ExitCode::kFailed);
    }
    ++count;
  }
  return count;
}

fs::path unfinished_checkpoint(const fs::path& folder, std::int64_t step) {
  return folder / fmt::format("{}{}", kUnfinished, checkpoint_name(step));
}

void commit_checkpoint(const fs::path& folder, const CheckpointManifest& manifest) {
  const fs::path unfinished = unfinished_checkpoint(folder, manifest.step);
  require_files(unfinished, manifest);
  const fs::path target = folder / checkpoint_name(manifest.step);
  write_file_atomically(unfinished / "checkpoint.json", manifest_text(manifest),
                        OutputPlace::kInFolder);
  std::error_code refused;
  if (fs::exists(target, refused)) remove_checkpoint(target);
  fs::rename(unfinished, target, refused);
  if (refused) {
    throw Error(fmt::format("{}: cannot take its name: {}", target.string(), refused.message()),
                exit_code_of(refused.value()));
  }
  // When that fails the new name may be gone after a power cut, so older checkpoints must stay.
  flush_folder(folder);
}

namespace {

constexpr std::string_view kSchema = "shardwright.checkpoint";
constexpr int kMajor = 1;
// The checksum stands for the text in which its own digits are zeros.
constexpr std::string_view kChecksumKey = "\"manifest_crc32\": \"";
constexpr std::size_t kDigits = 8;

std::string digits(std::uint32_t crc) {
  return fmt::format("{:08x}", crc);
}

std::uint32_t from_digits(const JsonReader& object, std::string_view key) {
  const auto text = object.require<std::string>(key);
  if (text.size() != kDigits || text.find_first_not_of("0123456789abcdef") != std::string::npos) {
    object.fail(key, "eight hexadecimal digits");
  }
  return static_cast<std::uint32_t>(std::stoul(text, nullptr, 16));
}

}  // namespace

std::string manifest_text(const CheckpointManifest& manifest) {
  nlohmann::ordered_json root = {{"schema", fmt::format("{}/{}.0", kSchema, kMajor)},
                                 {"step", manifest.step},
                                 {"sequences", manifest.sequences},
                                 {"tokens", manifest.tokens},
                                 {"seed", fmt::format("{}", manifest.seed)},
                                 {"data_fingerprint", digits(manifest.data_fingerprint)},
                                 {"plan", plan_to_json(manifest.plan)},
                                 {"config", manifest.config},
                                 {"tensors", nlohmann::ordered_json::array()},
                                 {"files", nlohmann::ordered_json::array()},
                                 {"tool_version", manifest.tool_version},
                                 {"manifest_crc32", std::string(kDigits, '0')}};
  for (const CheckpointTensor& tensor : manifest.tensors) {
    root["tensors"].push_back({{"name", tensor.name}, {"shape", tensor.shape}});
  }
  for (const CheckpointFile& file : manifest.files) {
    root["files"].push_back(
        {{"name", file.name}, {"bytes", file.bytes}, {"crc32", digits(file.crc)}});
  }
  if (!manifest.job_hash.empty()) {
    root["job"] = {{"sha256", manifest.job_hash}, {"facts", nlohmann::ordered_json::object()}};
    for (const JobFact& fact : manifest.job) root["job"]["facts"][fact.key] = fact.value;
  }
  std::string text =
      root.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  const std::size_t at = text.rfind(kChecksumKey);
  SHARDWRIGHT_CHECK(at != std::string::npos, "the manifest has a checksum");
  text.replace(at + kChecksumKey.size(), kDigits, digits(crc32(text)));
  return text;
}

CheckpointManifest parse_manifest(std::string_view text, const std::string& file) {
  const JsonFile document = JsonFile::parse(text, file);
  const JsonReader root = document.root();
  require_schema(root, kSchema, kMajor);
  const std::uint32_t promised = from_digits(root, "manifest_crc32");
  std::string zeroed(text);
  const std::size_t at = zeroed.rfind(kChecksumKey);
  if (at != std::string::npos && at + kChecksumKey.size() + kDigits <= zeroed.size()) {
    zeroed.replace(at + kChecksumKey.size(), kDigits, std::string(kDigits, '0'));
  }
  if (crc32(zeroed) != promised) {
    throw Error(fmt::format("{}: the checksum is {}, expected {}: the file was altered", file,
                            digits(crc32(zeroed)), digits(promised)));
  }
  constexpr std::int64_t kNone = 0;
  const auto counted = between(kNone, kMostCounted);
  CheckpointManifest manifest;
  manifest.step = root.require<std::int64_t>("step", counted);
  manifest.sequences = root.require<std::int64_t>("sequences", counted);
  manifest.tokens = root.require<std::int64_t>("tokens", counted);
  const auto seed = root.require<std::string>("seed");
  if (seed.empty() || seed.size() > 19 || seed.find_first_not_of("0123456789") != seed.npos) {
    root.fail("seed", "a number below 10^19 as text");
  }
  manifest.seed = std::stoull(seed);
  manifest.data_fingerprint = from_digits(root, "data_fingerprint");
  manifest.plan = plan_from_json(root.require_object("plan"));
  manifest.config = root.require<std::string>("config");
  for (const JsonReader& entry : root.require_array("tensors")) {
    manifest.tensors.push_back(
        {entry.require<std::string>("name"), entry.require_list<std::int64_t>("shape")});
  }
  std::set<std::string> names;
  for (const JsonReader& entry : root.require_array("files")) {
    CheckpointFile named{entry.require<std::string>("name"),
                         entry.require<std::int64_t>("bytes", at_least(kNone)),
                         from_digits(entry, "crc32")};
    if (named.name.empty() || named.name.find('/') != std::string::npos || named.name[0] == '.') {
      entry.fail("name", "a file of the checkpoint's folder");
    }
    if (!names.insert(named.name).second) entry.fail("name", "each file once");
    manifest.files.push_back(std::move(named));
  }
  manifest.tool_version = root.optional<std::string>("tool_version", "");
  if (root.has("job")) {
    const JsonReader job = root.require_object("job"), facts = job.require_object("facts");
    manifest.job_hash = job.require<std::string>("sha256");
    for (const std::string& key : facts.keys())
      manifest.job.push_back({key, facts.require<std::string>(key)});
  }
  return manifest;
}

namespace {

using Clock = std::chrono::steady_clock;

/// A name that no earlier run has looked for, so that no cache remembers that it lacks.
std::uint64_t fresh_number() {
  const Nonce nonce = fresh_nonce();
  std::uint64_t number = 0;
  std::memcpy(&number, nonce.data(), sizeof number);
  return number;
}

bool appears(const fs::path& file, double patience_s) {
  const auto end = Clock::now() + std::chrono::duration<double>(patience_s);
  std::error_code ignored;
  while (!fs::exists(file, ignored)) {
    if (Clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

}  // namespace

void require_files(const fs::path& folder, const CheckpointManifest& manifest, double patience_s) {
  const auto end = Clock::now() + std::chrono::duration<double>(patience_s);
  for (const CheckpointFile& file : manifest.files) {
    while (true) {
      std::error_code missing;
      const auto bytes = static_cast<std::int64_t>(fs::file_size(folder / file.name, missing));
      if (!missing && bytes == file.bytes) break;
      if (Clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        continue;
      }
      throw Error(fmt::format("{}: {} here, but its rank wrote {} bytes; expected a folder that "
                              "all ranks share",
                              (folder / file.name).string(),
                              missing ? "not" : fmt::format("{} bytes are", bytes), file.bytes),
                  ExitCode::kFailed);
    }
  }
}

void require_shared_folder(Communicator& world, const fs::path& folder,
                           std::span<const std::int64_t> writers, double patience_s) {
  if (world.size() == 1 || writers.size() <= 1) return;
  const std::uint64_t mine = world.rank() == 0 ? fresh_number() : 0;
  const std::uint64_t number = exchange_all(world, mine).front();
  const fs::path probe = folder / fmt::format("{}{:016x}", kSharedProbe, number);
  if (world.rank() == 0) write_file_atomically(probe, "", OutputPlace::kInFolder);
  world.barrier();
  const bool writes = std::find(writers.begin(), writers.end(), world.rank()) != writers.end();
  const bool sees = !writes || appears(probe, patience_s);
  const std::vector<std::uint64_t> seen = exchange_all(world, std::uint64_t{sees});
  std::error_code ignored;
  if (world.rank() == 0) fs::remove(probe, ignored);
  for (std::size_t rank = 0; rank < seen.size(); ++rank) {
    if (seen[rank] != 0) continue;
    throw Error(
        fmt::format("{}: rank {} does not see what rank 0 writes there; expected a folder "
                    "that all ranks share, or --save none",
                    folder.string(), rank));
  }
}

namespace {

/// kDamaged is about the checkpoint. kUnread is about the machine, and another checkpoint would not
/// be read either: the run ends, or it would go on from an older one for want of memory.
enum class Verdict : std::int64_t { kDamaged, kWhole, kUnread };

/// What a rank says of a candidate.
struct Finding {
  std::int64_t step = -1;               // of the manifest; -1: it cannot be opened
  Verdict verdict = Verdict::kDamaged;  // of this rank's share of the files
  char error[240] = {};                 // ends in zero

  void say(std::string_view text) {
    std::copy_n(text.data(), std::min(text.size(), sizeof error - 1), error);
  }
};
static_assert(sizeof(Finding) == 256);

Finding look_at(const std::filesystem::path& path, const Communicator& world,
                std::unique_ptr<Checkpoint>& opened) {
  Finding mine;
  try {
    opened = std::make_unique<Checkpoint>(path);
    mine.step = opened->manifest().step;
    opened->verify(world.rank(), world.size());
    mine.verdict = Verdict::kWhole;
  } catch (const std::bad_alloc&) {
    mine.verdict = Verdict::kUnread;
    mine.say("this machine ran out of memory");
  } catch (const std::exception& error) {
    mine.say(error.what());
  }
  return mine;
}

/// Ranks that see different folders would go on from different steps.
void require_same_candidates(Communicator& world,
                             const std::vector<std::filesystem::path>& candidates) {
  const std::vector<std::int64_t> counts =
      exchange_all(world, static_cast<std::int64_t>(candidates.size()));
  for (std::size_t rank = 1; rank < counts.size(); ++rank) {
    if (counts[rank] == counts.front()) continue;
    throw Error(
        fmt::format("rank 0 sees {} checkpoints to resume from, rank {} sees {}; expected "
                    "a folder that all ranks share",
                    counts.front(), rank, counts[rank]));
  }
}

}  // namespace

std::unique_ptr<Checkpoint> choose_checkpoint(Communicator& world,
                                              const std::vector<std::filesystem::path>& candidates,
                                              const std::function<void(const std::string&)>& note) {
  require_same_candidates(world, candidates);
  if (candidates.empty()) return nullptr;
  std::string last;
  for (const std::filesystem::path& path : candidates) {
    std::unique_ptr<Checkpoint> opened;
    const std::vector<Finding> all = exchange_all(world, look_at(path, world, opened));
    const auto found = [&](Verdict verdict) {
      return std::find_if(all.begin(), all.end(),
                          [=](const Finding& one) { return one.verdict == verdict; });
    };
    if (const auto unread = found(Verdict::kUnread); unread != all.end()) {
      throw Error(fmt::format("{}: rank {} could not read it: {}", path.string(),
                              unread - all.begin(), unread->error),
                  ExitCode::kFailed);
    }
    const auto bad = found(Verdict::kDamaged);
    if (bad == all.end()) {
      const auto other = std::find_if(
          all.begin(), all.end(), [&](const Finding& one) { return one.step != all.front().step; });
      if (other == all.end()) return opened;
      throw Error(
          fmt::format("{}: step {} on rank 0, step {} on rank {}; expected a folder that "
                      "all ranks share",
                      path.string(), all.front().step, other->step, other - all.begin()));
    }
    last = bad->error;
    if (world.rank() == 0 && candidates.size() > 1)
      note(fmt::format("{}; the one before it is tried", last));
  }
  if (candidates.size() == 1) throw Error(last);
  throw Error(fmt::format("{}: none of {} checkpoints is whole, expected one to resume from",
                          candidates.front().parent_path().string(), candidates.size()));
}

}  // namespace shardwright::exec
