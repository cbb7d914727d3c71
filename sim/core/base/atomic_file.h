// SPDX-License-Identifier: Apache-2.0
// Output files that are either whole or not there.
//
// The content goes to a temporary file in the same folder, is flushed to the disk, and then takes
// the target's name in one step; a crash, a full disk or a killed process leaves the old file as it
// was. A target that the user names may also be no regular file (/dev/stdout, a pipe with a
// reader), which is written directly, or a symbolic link, which stays one and whose target is
// replaced unless the link is another user's. In a folder that came from elsewhere neither is
// accepted: an archive makes links and pipes in the name of whoever unpacks it. Two writers of one
// file do not mix: the last to commit wins.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "sim/core/base/error.h"

namespace shardwright {

/// What the system's reason means for the program: kBadInput for a path that names no place to
/// write (not there, not permitted, a folder), kFailed for a machine that cannot do it now (a full
/// or broken disk, one that became read-only, no descriptors).
ExitCode exit_code_of(int error_number);

/// What may stand at the place of a file that is to be written.
enum class OutputPlace : std::uint8_t {
  kNamed,     // by the user: a link is followed, a device or pipe written to
  kInFolder,  // one of several in a folder that is named: a regular file or nothing
};

/// Throws Error when the path is a symbolic link that neither this user nor root made: in a folder
/// that others may write, such a link leads to a file of their choice.
void refuse_foreign_link(const std::filesystem::path& path);

/// Throws Error when the path is there and no regular file: a link, a pipe, a device, a folder.
void require_regular_or_none(const std::filesystem::path& path);
/// Throws Error when the path is there and no folder of its own: a link to one is refused.
void require_folder_or_none(const std::filesystem::path& path);

/// Whether both name one file or folder that is there.
bool is_same_file(const std::filesystem::path& one, const std::filesystem::path& other);

/// Makes what was created, renamed or removed in a folder durable. A folder that cannot be read is
/// passed over. Throws Error.
void flush_folder(const std::filesystem::path& folder);

/// A file being written in pieces. Without commit() the destructor drops what was written.
/// Errors name the target; their code is that of the system's reason (exit_code_of).
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& target, OutputPlace place = OutputPlace::kNamed);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::string_view bytes);
  /// Makes the file durable and visible under its name; nothing may be written after it.
  void commit();

 private:
  [[noreturn]] void fail(std::string_view action, int error_number) const;
  /// A pipe's reader is waited for, for a moment; throws Error when there is none.
  void open_as_it_is(bool pipe);
  void drop();

  std::filesystem::path target_;     // as the user named it, for errors
  std::filesystem::path final_;      // with links followed
  std::filesystem::path temporary_;  // empty when the target is written directly
  int fd_ = -1;
};

/// AtomicFile for content that is already whole.
void write_file_atomically(const std::filesystem::path& target, std::string_view content,
                           OutputPlace place = OutputPlace::kNamed);

// Folders that are still there after a power cut: each is flushed in the one above it, or what is
// later flushed within it may be lost with its name.

/// Makes the folder and what is missing of its parents. Throws Error.
void make_durable_folder(const std::filesystem::path& folder);

}  // namespace shardwright
