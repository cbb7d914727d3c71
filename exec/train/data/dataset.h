// SPDX-License-Identifier: Apache-2.0
// What a model is trained or evaluated on: numbered sequences of one length, each with its targets.
//
// For pre-training (clm) a corpus is cut into sequences of seq_len tokens; the target of a token is
// the next one. For fine-tuning see exec/train/data/sft_dataset.h. In which order sequences come,
// and which rank gets which, is exec/train/data/dataset.h's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "exec/batch.h"
#include "exec/train/data/token_file.h"

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

// Several datasets as one, in given shares: of 100 sequences of an epoch, so many are of each.
//
// An epoch is as long as it must be for the part that its share stretches the most to be seen once;
// parts that are too short for theirs are seen again within it. Without shares every sequence of
// every part is seen once. The order of sequences, and with it the mixing, is below.

struct BlendedPart {
  std::unique_ptr<Dataset> data;
  double share = 0;  // relative to the others'; 0 for all: as many as each has
};

/// Shares are all positive or all 0. Throws Error where an epoch would be too long to number.
std::unique_ptr<Dataset> make_blended_dataset(std::vector<BlendedPart> parts);

// In which order sequences are trained on, and which rank gets which.
//
// The run counts the sequences it has consumed; that number, the seed and the data are the whole
// state. Every epoch visits every sequence once, in a random order of its own: a keyed permutation
// (a Feistel network over Philox, walked until it lands inside the range) gives the n-th sequence
// without a table, so a corpus of any size costs no memory and resuming no time.
//
// A step takes the next micro_batch * grad_accum * ranks sequences. Micro-batch m of rank r takes
// micro-batch m * ranks + r of them, so what a step sees depends only on its number of sequences.

class DataOrder {
 public:
  DataOrder(std::uint64_t seed, std::int64_t sequences);

  /// The sequence that stands at `position`, counted from 0 through all epochs.
  std::int64_t sequence_at(std::int64_t position) const;
  std::int64_t sequences() const { return sequences_; }

 private:
  std::uint64_t permute(std::uint64_t value, std::uint32_t epoch) const;

  std::uint64_t seed_;
  std::int64_t sequences_;
  unsigned half_bits_ = 1;
};

/// How a step's sequences are divided.
struct BatchShape {
  std::int64_t micro_batch = 1;
  std::int64_t micro_steps = 1;
  std::int64_t ranks = 1;
  std::int64_t sequences() const { return micro_batch * micro_steps * ranks; }
};

/// What `rank` trains on in the step that begins at `position`.
Batch training_batch(const Dataset& data, const DataOrder& order, const BatchShape& shape,
                     std::int64_t position, std::int64_t rank);

/// One micro-batch of evaluation: sequences [first, last) of the data in their own order, as many
/// as there is room for, then padding.
Batch evaluation_batch(const Dataset& data, const BatchShape& shape, std::int64_t seq_len,
                       std::int64_t first, std::int64_t last, std::int64_t rank);

// From what a user names to training and evaluation data.

enum class DataFormat : std::uint8_t { kAuto, kText, kBin, kTokens, kSft };
/// Throws Error naming the word and what is accepted.
DataFormat data_format_from(std::string_view name);

/// What one word of --data names.
struct DataPart {
  std::string word;                // a file, folder, glob or "synthetic"
  std::vector<std::string> files;  // in order
  double share = 0;                // 0: none is given
};

/// "a.bin=0.7,b/=0.3" in its parts; a file of that whole name is one. Throws Error.
std::vector<DataPart> data_parts(const std::string& text);
/// Whether a tokenizer has to be applied to the file.
bool is_text(const std::string& path, DataFormat format);

struct DataOptions {
  /// "synthetic", or files, folders and globs, WORD[=SHARE] joined by commas.
  std::string train{};
  std::string eval{};                     // a path; empty: the end of the training data is held out
  DataFormat format = DataFormat::kAuto;  // kAuto: by content; *.jsonl is sft, other text text
  bool holds_out = true;                  // when there is no eval path
  double held_out_fraction = 0.05;
  std::int64_t seq_len = 0;
  std::int64_t vocab = 0;
  bool bytes = false;  // texts are asked for as bytes, whatever the vocabulary (require_bytes)
  /// Throws Error where the model does not go with what a file says of its tokens; none: any do.
  std::function<void(const TokenSource&, const std::string& path)> require_kin{};
  DocumentEnds ends{};     // of what is no fine-tuning
  bool checks = false;     // every token now, not when it is met
  std::uint64_t seed = 0;  // of synthetic data
};

struct Data {
  std::unique_ptr<Dataset> train;
  std::unique_ptr<Dataset> eval;     // null: nothing to evaluate on
  std::vector<std::string> files{};  // of the training data
};

/// Throws Error naming the file and what is wrong with it.
Data open_data(const DataOptions& options);

}  // namespace shardwright::exec
