// SPDX-License-Identifier: Apache-2.0
// Supervised fine-tuning: documents of which some tokens count, packed into sequences.
//
// The file is a token file with a mask, or has one JSON object a line;
// exec/train/data/sft_dataset.h says which (prompt and response, the messages of a conversation, a
// text) and what of them counts. Documents are packed one after the other into sequences in the
// order of the file: positions begin anew and attention does not cross from one to the next. A
// conversation that is longer than a sequence loses its end; a text goes on in a sequence of its
// own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "exec/train/data/dataset.h"
#include "sim/core/base/json_file.h"

namespace shardwright::exec {

/// All documents of a file in memory.
class SftCorpus {
 public:
  /// Throws Error that names the file and the line.
  static SftCorpus load(const std::filesystem::path& path, std::int64_t vocab, bool bytes = false);
  static SftCorpus parse(std::string_view text, std::string name, std::int64_t vocab,
                         bool bytes = false);
  /// Of a source with documents.
  static SftCorpus of(const TokenSource& source, std::string name);

  struct Document {
    std::size_t first = 0;  // into tokens()
    std::int64_t size = 0;
    bool continues = false;  // what does not fit into a sequence goes into the next
  };
  const std::vector<Document>& documents() const { return documents_; }
  const std::vector<std::int32_t>& tokens() const { return tokens_; }
  std::int32_t token(std::int64_t at) const { return tokens_[static_cast<std::size_t>(at)]; }
  /// Whether the loss asks for this token.
  bool counts(std::int64_t at) const { return counts_[static_cast<std::size_t>(at)]; }
  const std::string& name() const { return name_; }
  std::uint32_t fingerprint() const { return fingerprint_; }

 private:
  void add_line(std::string_view line, std::size_t number, std::int64_t vocab, bool bytes);

  std::string name_;
  std::vector<Document> documents_;
  std::vector<std::int32_t> tokens_;
  std::vector<bool> counts_;  // by token
  std::uint32_t fingerprint_ = 0;
};

/// The documents [first, first + count), packed. Throws Error naming one of which nothing counts.
std::unique_ptr<Dataset> make_sft_dataset(std::shared_ptr<const SftCorpus> corpus,
                                          std::int64_t seq_len, std::size_t first,
                                          std::size_t count);

// One line of a file for fine-tuning as tokens, and which of them the loss asks for.
//
//   {"prompt": ..., "response": ...}   each a text, a list of token ids or of messages; the
//   response
//                                      counts. TRL calls it completion
//   {"messages": [{"role": ..., "content": ...}, ...]}   a conversation; what the assistant says
//                                      counts. A content that is text is set in ChatML
//                                      ("<|im_start|>user\nHello<|im_end|>\n"), one that is a list
//                                      of token ids is taken as it is
//   {"text": ...}                      all of it counts
//
// The UTF-8 bytes of a text are its tokens, where the model's tokens are bytes. Other keys are
// ignored.

class SftLine {
 public:
  /// Appends to both; `bytes`: texts are asked for (require_bytes).
  SftLine(std::int64_t vocab, bool bytes, std::vector<std::int32_t>& tokens,
          std::vector<bool>& counts)
      : vocab_(vocab), bytes_(bytes), tokens_(tokens), counts_(counts) {}

  /// True for a text, of which every part is as good as the first. Throws Error naming the key.
  bool read(const JsonReader& object);

 private:
  void append_text(const JsonReader& object, std::string_view key, std::string_view text,
                   bool counts);
  /// The text or the token ids of `key`.
  void append(const JsonReader& object, std::string_view key, bool counts);
  /// `may_count`: whether what the assistant says counts.
  void append_messages(const std::vector<JsonReader>& messages, bool may_count);
  void append_message(const JsonReader& message, bool may_count);

  std::int64_t vocab_;
  bool bytes_;
  std::vector<std::int32_t>& tokens_;
  std::vector<bool>& counts_;
};

/// Whether a line holds texts, whose tokens a tokenizer makes, and not token ids.
bool holds_text(std::string_view line);

}  // namespace shardwright::exec
