// SPDX-License-Identifier: Apache-2.0
#include "cli/run/output_folder.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "sim/core/base/atomic_file.h"
#include "sim/core/base/error.h"

namespace shardwright::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTraceFile = "trace.json";
constexpr std::array kOwnFiles = {"metrics.jsonl", "plan.json", "run.ini", kTraceFile,
                                  "products.json"};

/// "process 4711 on n0", as the lock's holder wrote it; "another process" when it has not.
std::string holder(int fd) {
  std::array<char, 300> text{};
  const ssize_t count = ::pread(fd, text.data(), text.size() - 1, 0);
  if (count <= 0) return "another process";
  std::string name(text.data(), static_cast<std::size_t>(count));
  for (char& c : name) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  while (!name.empty() && name.back() == ' ') name.pop_back();
  return name;
}

/// A file that is made beside the one to come, and dropped.
void try_file(const fs::path& path) {
  std::error_code ignored;
  const auto kind = fs::status(path, ignored).type();
  // A pipe or a terminal is tried by whoever opens it.
  if (kind != fs::file_type::not_found && kind != fs::file_type::regular &&
      kind != fs::file_type::directory) {
    return;
  }
  const AtomicFile probe(path);
}

/// The same of a file in the run's folder.
void try_own_file(const fs::path& path) {
  const AtomicFile probe(path, OutputPlace::kInFolder);
}

/// What killed runs left of files that they were writing: ".NAME.PROCESS-COUNT.tmp" (AtomicFile).
void remove_temporaries(const fs::path& out) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(out, ignored)) {
    const std::string name = entry.path().filename().string();
    const bool own = std::any_of(kOwnFiles.begin(), kOwnFiles.end(), [&](const char* file) {
      return name.starts_with(fmt::format(".{}.", file));
    });
    if (own && name.ends_with(".tmp")) fs::remove(entry.path(), ignored);
  }
}

bool is_own_trace(const RunOptions& options) {
  return fs::absolute(options.trace).lexically_normal() ==
         fs::absolute(fs::path(options.out) / kTraceFile).lexically_normal();
}

}  // namespace

OutputLock::OutputLock(const fs::path& folder) {
  make_durable_folder(folder);
  const fs::path path = folder / ".lock";
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (fd_ < 0) {
    const int reason = errno;
    throw Error(fmt::format("{}: cannot write this file: {}", path.string(),
                            std::generic_category().message(reason)),
                exit_code_of(reason));
  }
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return;
    const std::string name = holder(fd_);
    ::close(fd_);
    throw Error(fmt::format("{}: {} is writing its run there; expected another --out, or that it "
                            "has ended",
                            folder.string(), name),
                ExitCode::kFailed);
  }
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::string name = fmt::format("process {} on {}\n", ::getpid(), host.data());
  // The lock holds without the name, too.
  [[maybe_unused]] const bool named =
      ::ftruncate(fd_, 0) == 0 && ::pwrite(fd_, name.data(), name.size(), 0) > 0;
}

OutputLock::~OutputLock() {
  if (fd_ >= 0) ::close(fd_);
}

fs::path model_folder(const RunOptions& options) {
  return fs::path(options.out) / "model";
}

void try_trace(const RunOptions& options, const RunSettings& settings) {
  if (options.trace.empty()) return;
  const fs::path folder = fs::absolute(options.trace).lexically_normal().parent_path();
  for (const char* own : kOwnFiles) {
    if (own != kTraceFile && is_same_file(options.trace, fs::path(options.out) / own))
      settings.fail("trace", "no other file of the run");
  }
  for (const SettingInfo& info : setting_table()) {
    if (info.key != std::string_view("trace") &&
        is_same_file(options.trace, settings.text(info.key)))
      settings.fail("trace",
                    fmt::format("a file that {} does not name", settings.at(info.key).name));
  }
  // The run's own folder is made when nothing is left to refuse.
  if (folder == (fs::absolute(options.out) / "").lexically_normal().parent_path()) return;
  try_file(options.trace);
}

void require_own_folders(const RunOptions& options) {
  require_folder_or_none(exec::checkpoints_folder(options.out));
  require_folder_or_none(model_folder(options));
  if (options.train.event_files) require_folder_or_none(fs::path(options.out) / "tensorboard");
}

void require_room(const RunOptions& options) {
  const fs::path model = model_folder(options);
  std::error_code ignored;
  if (!options.resume.empty() || !fs::exists(model / "config.json", ignored)) return;
  if (options.overwrite) return;
  throw Error(
      fmt::format("{}: a finished run is there, its model is {}; expected another --out, "
                  "--resume auto to go on with it, or --overwrite yes",
                  options.out, model.string()));
}

void remove_finished_model(const RunOptions& options) {
  const fs::path model = model_folder(options);
  std::error_code ignored;
  if (options.resume.empty() && fs::exists(model / "config.json", ignored))
    fs::remove_all(model, ignored);
}

void try_outputs(const RunOptions& options) {
  const fs::path out = options.out, checkpoints = exec::checkpoints_folder(out);
  remove_temporaries(out);
  for (const char* name : kOwnFiles) try_own_file(out / name);
  if (options.train.saves) {
    make_durable_folder(checkpoints);
    try_own_file(checkpoints / "probe");
    std::error_code ignored;
    if (fs::exists(model_folder(options), ignored))
      try_own_file(model_folder(options) / "config.json");
  }
  if (!options.trace.empty() && !is_own_trace(options)) try_file(options.trace);
}

}  // namespace shardwright::cli
