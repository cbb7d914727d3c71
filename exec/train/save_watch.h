// SPDX-License-Identifier: Apache-2.0
// Notices that a checkpoint is being written for long, and says on which file.
//
// A disk that is gone lets a write wait for ever, and a slow one may take minutes for a flush: the
// first must end the run and the second must not, so the limit is another than that of steps.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>

namespace shardwright::exec {

struct SaveLimits {
  double note_s = 60;
  double end_s = 3600;
};

/// What a rank does about a checkpoint.
struct SaveStage {
  std::string what{};     // begins a sentence; empty: nothing
  bool waits = false;     // for other ranks, which tell first
  std::int64_t turn = 0;  // another one where time begins anew
};

class SaveWatch {
 public:
  using Look = std::function<SaveStage()>;
  /// Hears of a stage that takes long and, at last, of one that does not end; on a thread of its
  /// own.
  using Tell = std::function<void(const std::string& sentence, bool is_hang)>;

  SaveWatch(const SaveLimits& limits, const Look& look, const Tell& tell);

 private:
  std::jthread thread_;
};

}  // namespace shardwright::exec
