// SPDX-License-Identifier: Apache-2.0
// What a model is trained or evaluated on: numbered sequences of one length, each with its targets.
//
// For pre-training (clm) a corpus is cut into sequences of seq_len tokens; the target of a token is
// the next one. For fine-tuning see exec/train/data/sft_dataset.h. In which order sequences come,
// and which rank gets which, is exec/train/data/data_order.h's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "exec/batch.h"
#include "exec/train/data/token_source.h"

namespace shardwright::exec {

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t sequences() const = 0;
  /// Appends one sequence: tokens, targets, positions and first keys. Threads may call at once.
  virtual void append(std::int64_t sequence, Batch& batch) const = 0;
  /// For the person who starts the run.
  virtual std::string describe() const = 0;
  /// Whether a sequence may hold several documents, which attention must tell apart.
  virtual bool packs_documents() const { return false; }
  /// The same for the same sequences.
  virtual std::uint32_t fingerprint() const = 0;
};

/// Whether attention and positions begin anew with each document, and nothing is trained to follow
/// another's end. Documents end where the source says, else behind a token.
struct DocumentEnds {
  bool apart = false;
  std::int64_t token = -1;  // -1: none
};

/// The sequences that lie wholly, with their last target, in tokens [first, first + count) of a
/// corpus. Throws Error when there is none.
std::unique_ptr<Dataset> make_clm_dataset(std::shared_ptr<const TokenSource> source,
                                          std::int64_t seq_len, std::int64_t first,
                                          std::int64_t count, DocumentEnds ends = {});

/// Appends a sequence that counts nothing, to fill up a batch.
void append_padding(std::int64_t seq_len, Batch& batch);

}  // namespace shardwright::exec
