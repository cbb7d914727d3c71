// SPDX-License-Identifier: Apache-2.0
// Supervised fine-tuning: documents of which some tokens count, packed into sequences.
//
// The file is a token file with a mask, or has one JSON object a line; exec/train/data/sft_line.h
// says which (prompt and response, the messages of a conversation, a text) and what of them counts.
// Documents are packed one after the other into sequences in the order of the file: positions begin
// anew and attention does not cross from one to the next. A conversation that is longer than a
// sequence loses its end; a text goes on in a sequence of its own.
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "exec/train/data/dataset.h"

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

}  // namespace shardwright::exec
