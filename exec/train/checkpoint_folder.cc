// SPDX-License-Identifier: Apache-2.0
// Which checkpoints there are, and how one comes and goes: by renaming, so that a folder with the
// name of a checkpoint is always a whole one.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <system_error>

#include "exec/train/checkpoint.h"
#include "exec/train/shared_folder.h"
#include "sim/core/base/atomic_file.h"
#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"

namespace shardwright::exec {
namespace {

namespace fs = std::filesystem;

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

}  // namespace shardwright::exec
