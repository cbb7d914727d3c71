// SPDX-License-Identifier: Apache-2.0
// Checkpoints on the disk: what is in one, which there are, and which can be trusted.
//
// A checkpoint is a folder step-000100 with one safetensors file for every rank that owns what no
// rank before it does, and checkpoint.json, which names them with size and CRC-32 and carries one
// of its own. A rank's file holds the parts of tensors that it owns, as "parameter:NAME:OFFSET",
// "first_moment:..." and "second_moment:...": elements from OFFSET on, or, with two dimensions, a
// rectangle whose first one that is. So any number of ranks and any layout can put the tensors
// together again.
//
// The files are written into a folder with another name, which takes its own only when everything
// is durable: a killed run or a full disk leaves earlier checkpoints as they were. Who writes when
// is exec/train/checkpointer.h's, what goes into an executor exec/train/train_state.h's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "exec/comm/agreement.h"
#include "exec/communicator.h"
#include "exec/train/safetensors.h"
#include "sim/core/plan.h"

namespace shardwright::exec {

enum class StateKind : std::uint8_t { kParameter, kFirstMoment, kSecondMoment };
inline constexpr StateKind kStateKinds[] = {StateKind::kParameter, StateKind::kFirstMoment,
                                            StateKind::kSecondMoment};
std::string_view name_of(StateKind kind);

struct CheckpointTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  bool operator==(const CheckpointTensor&) const = default;
};

struct CheckpointFile {
  std::string name;
  std::int64_t bytes = 0;
  std::uint32_t crc = 0;
};

/// What a run may count to: every number of JSON up to here is exact, and sums stay far from 2^63.
inline constexpr std::int64_t kMostCounted = std::int64_t{1} << 53;

struct CheckpointManifest {
  std::int64_t step = 0;       // optimizer steps done
  std::int64_t sequences = 0;  // consumed by them: the place in the data
  std::int64_t tokens = 0;     // that counted
  std::uint64_t seed = 0;      // of initial weights, shuffle and rounding
  std::uint32_t data_fingerprint = 0;
  std::string config;  // the model's config.json
  Plan plan;
  std::vector<CheckpointTensor> tensors;
  std::vector<CheckpointFile> files;
  std::string tool_version;
  std::string job_hash;  // of all that ranks agreed on; empty, as `job`: it is not told
  JobFacts job;
};

/// The text of checkpoint.json.
std::string manifest_text(const CheckpointManifest& manifest);
/// Throws Error naming `file` and what is wrong.
CheckpointManifest parse_manifest(std::string_view text, const std::string& file);

/// Reads the file and throws Error where its CRC-32 is another.
void require_checksum(const std::filesystem::path& path, std::uint32_t expected);

/// A checkpoint that can be read.
class Checkpoint {
 public:
  /// Checks checkpoint.json, the size and header of every file, and that every tensor is whole.
  /// Throws Error naming the file and what is wrong.
  explicit Checkpoint(const std::filesystem::path& folder);

  const CheckpointManifest& manifest() const { return manifest_; }
  const std::filesystem::path& folder() const { return folder_; }
  /// Compares the checksums of files number part, part + parts, ... with the manifest's; throws
  /// Error when one is wrong.
  void verify(std::int64_t part = 0, std::int64_t parts = 1) const;
  /// Elements [first, first + out.size()) of a tensor.
  void read(StateKind kind, std::string_view tensor, std::int64_t first,
            std::span<float> out) const;

 private:
  struct Piece {
    std::int64_t first = 0;
    std::int64_t count = 0;
    std::int64_t offset = 0;  // of its first element in what is stored
    const SafetensorsFile* file = nullptr;
    const StoredTensor* stored = nullptr;
  };
  void index_file(const SafetensorsFile& file);
  const CheckpointTensor* matrix_of(std::string_view key) const;
  void require_whole_tensors();

  std::filesystem::path folder_;
  CheckpointManifest manifest_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, std::vector<Piece>, std::less<>> pieces_;  // by "kind:name", in order
};

/// step-000100
std::string checkpoint_name(std::int64_t step);
/// The checkpoints in a folder, the newest first; empty when there is none.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& folder);
/// Removes all but the `keep` newest (0: keeps all), and what killed runs left half written.
void prune_checkpoints(const std::filesystem::path& folder, std::int64_t keep);
void remove_unfinished_checkpoints(const std::filesystem::path& folder);
/// Renames checkpoints after `step` to abandoned-..., so that they are neither resumed from nor
/// counted; a run that begins anew or at an earlier step makes others. Returns how many.
std::int64_t set_aside_checkpoints(const std::filesystem::path& folder, std::int64_t step);
/// The folder in which a checkpoint is written before it takes its name.
std::filesystem::path unfinished_checkpoint(const std::filesystem::path& folder, std::int64_t step);
/// Writes the manifest and lets the checkpoint take its name. All files are durable.
void commit_checkpoint(const std::filesystem::path& folder, const CheckpointManifest& manifest);

// Whether the ranks that write checkpoints see one folder, before the first step and before a
// checkpoint takes its name. Ranks of another node that write to a disk of their own would leave
// checkpoints that nobody can read.

/// How long what another node wrote may take to be seen: caches of network file systems.
inline constexpr double kFolderPatience_s = 10;

/// How the files begin by which ranks find out; one stays when a run is killed meanwhile.
inline constexpr std::string_view kSharedProbe = ".shared-";

/// Waits until every file of the manifest is in `folder` with its size. Throws Error naming the
/// first that is not after `patience_s`.
void require_files(const std::filesystem::path& folder, const CheckpointManifest& manifest,
                   double patience_s = kFolderPatience_s);

/// All ranks call it together, after rank 0 has made `folder`; the `writers` need it.
/// Throws Error on every rank when one of them does not see what rank 0 writes there.
void require_shared_folder(Communicator& world, const std::filesystem::path& folder,
                           std::span<const std::int64_t> writers,
                           double patience_s = kFolderPatience_s);

// Which checkpoint a run goes on from, decided by all ranks together.
//
// Checksums are of whole files, so the ranks share the files: each byte of a checkpoint is read
// once for its checksum, by the rank that wrote it where there are as many ranks as then. A
// checkpoint that any of them finds damaged is left out by all.

/// The first of `candidates` that every rank can open and whose checksums are right. All ranks
/// call it together with what each of them found. `note` hears, on rank 0, why one was left out.
/// Null when there is none to choose from. Throws Error on every rank when none is whole, when
/// ranks see different checkpoints, or when memory for reading one is short.
std::unique_ptr<Checkpoint> choose_checkpoint(Communicator& world,
                                              const std::vector<std::filesystem::path>& candidates,
                                              const std::function<void(const std::string&)>& note);

}  // namespace shardwright::exec
