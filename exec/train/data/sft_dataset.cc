// SPDX-License-Identifier: Apache-2.0
#include "exec/train/data/sft_dataset.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "exec/train/data/mapped_file.h"
#include "exec/train/data/token_file.h"
#include "sim/core/base/check.h"
#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"

namespace shardwright::exec {

namespace {

class SftDataset final : public Dataset {
 public:
  SftDataset(std::shared_ptr<const SftCorpus> corpus, std::int64_t seq_len, std::size_t first,
             std::size_t count)
      : corpus_(std::move(corpus)), seq_len_(seq_len), first_(first), last_(first + count) {
    SHARDWRIGHT_CHECK(last_ <= corpus_->documents().size(), "documents {} to {}", first_, last_);
    for (std::size_t d = first_; d < last_; ++d) {
      const std::int64_t before = counted_;
      cut(corpus_->documents()[d]);
      if (counted_ > before) continue;
      throw Error(fmt::format(
          "{}: document {} has {} token{}, of which none that the loss asks for follows "
          "another within a sequence of {}, expected at least one",
          corpus_->name(), d + 1, corpus_->documents()[d].size,
          corpus_->documents()[d].size == 1 ? "" : "s", seq_len_));
    }
    std::int64_t used = seq_len_;
    for (std::size_t p = 0; p < pieces_.size(); ++p) {
      const Piece& piece = pieces_[p];
      if (used + piece.inputs > seq_len_) {
        begins_.push_back(p);
        used = 0;
      }
      used += piece.inputs;
    }
  }

  std::int64_t sequences() const override { return std::ssize(begins_); }

  void append(std::int64_t sequence, Batch& batch) const override {
    SHARDWRIGHT_CHECK(sequence >= 0 && sequence < sequences(), "sequence {} of {}", sequence,
                      sequences());
    const auto s = static_cast<std::size_t>(sequence);
    const std::size_t end = s + 1 < begins_.size() ? begins_[s + 1] : pieces_.size();
    std::int32_t used = 0;
    for (std::size_t p = begins_[s]; p < end; ++p) {
      const Piece& piece = pieces_[p];
      for (std::int32_t i = 0; i < piece.inputs; ++i) {
        const std::int64_t at = piece.first + i;
        batch.tokens.push_back(corpus_->token(at));
        batch.targets.push_back(corpus_->counts(at + 1) ? corpus_->token(at + 1) : kIgnoreTarget);
        batch.positions.push_back(i);
        batch.first_keys.push_back(used);
      }
      used += piece.inputs;
    }
    for (; used < static_cast<std::int32_t>(seq_len_); ++used) {
      batch.tokens.push_back(0);
      batch.targets.push_back(kIgnoreTarget);
      batch.positions.push_back(0);
      batch.first_keys.push_back(used);
    }
  }

  bool packs_documents() const override { return true; }
  std::string describe() const override {
    std::string text =
        fmt::format("{} documents of {} in {} sequences of {} tokens, {} of which count",
                    last_ - first_, corpus_->name(), begins_.size(), seq_len_, counted_);
    if (cut_ > 0) text += fmt::format("; {} documents are longer and lose their end", cut_);
    return text;
  }

  std::uint32_t fingerprint() const override {
    const std::int64_t parts[] = {seq_len_, static_cast<std::int64_t>(first_),
                                  static_cast<std::int64_t>(last_)};
    return crc32(std::as_bytes(std::span(parts)), corpus_->fingerprint());
  }

 private:
  /// `inputs` tokens from `first` on, each with the one behind it as its target.
  struct Piece {
    std::int64_t first = 0;
    std::int32_t inputs = 0;
  };

  /// A conversation loses what does not fit into a sequence; a text goes on in the next one.
  void cut(const SftCorpus::Document& document) {
    const std::int64_t inputs = document.size - 1;
    if (inputs > seq_len_ && !document.continues) ++cut_;
    for (std::int64_t done = 0; done < inputs; done += seq_len_) {
      const Piece& piece =
          pieces_.emplace_back(Piece{static_cast<std::int64_t>(document.first) + done,
                                     static_cast<std::int32_t>(std::min(inputs - done, seq_len_))});
      for (std::int64_t i = 1; i <= piece.inputs; ++i) counted_ += corpus_->counts(piece.first + i);
      if (!document.continues) return;
    }
  }

  std::shared_ptr<const SftCorpus> corpus_;
  std::int64_t seq_len_;
  std::size_t first_;
  std::size_t last_;
  std::vector<Piece> pieces_;
  std::vector<std::size_t> begins_;  // first piece of every sequence
  std::int64_t counted_ = 0;
  std::int64_t cut_ = 0;
};

}  // namespace

SftCorpus SftCorpus::load(const std::filesystem::path& path, std::int64_t vocab, bool asked) {
  const MappedFile file(path);
  const std::span<const std::byte> bytes = file.bytes();
  return parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, file.name(), vocab,
               asked);
}

SftCorpus SftCorpus::of(const TokenSource& source, std::string name) {
  SftCorpus corpus;
  corpus.name_ = std::move(name);
  corpus.fingerprint_ = source.fingerprint();
  corpus.tokens_.resize(static_cast<std::size_t>(source.size()));
  source.read(0, corpus.tokens_);
  const std::span<const std::byte> mask = source.mask();
  corpus.counts_.assign(corpus.tokens_.size(), true);
  for (std::size_t i = 0; i < corpus.tokens_.size() && !mask.empty(); ++i)
    corpus.counts_[i] = (std::to_integer<unsigned>(mask[i / 8]) >> (i % 8) & 1) != 0;
  std::size_t first = 0;
  for (const std::uint64_t marked : source.documents()) {
    const auto end = static_cast<std::size_t>(marked & ~kGoesOn);
    corpus.documents_.push_back(
        {first, static_cast<std::int64_t>(end - first), (marked & kGoesOn) != 0});
    first = end;
  }
  return corpus;
}

SftCorpus SftCorpus::parse(std::string_view text, std::string name, std::int64_t vocab,
                           bool bytes) {
  SftCorpus corpus;
  corpus.name_ = std::move(name);
  corpus.fingerprint_ = crc32(text);
  std::size_t number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
      corpus.add_line(line, number, vocab, bytes);
    }
  }
  if (corpus.documents_.empty()) {
    throw Error(
        fmt::format("{}: no documents, expected lines of {{\"prompt\": ..., "
                    "\"response\": ...}}, {{\"messages\": [...]}} or {{\"text\": ...}}",
                    corpus.name_));
  }
  return corpus;
}

void SftCorpus::add_line(std::string_view line, std::size_t number, std::int64_t vocab,
                         bool bytes) {
  const JsonFile file = JsonFile::parse(line, fmt::format("{}, line {}", name_, number),
                                        {.max_bytes = std::size_t{64} << 20, .max_depth = 16});
  Document document{.first = tokens_.size()};
  document.continues = SftLine(vocab, bytes, tokens_, counts_).read(file.root());
  document.size = static_cast<std::int64_t>(tokens_.size() - document.first);
  if (document.size > (std::int64_t{1} << 30)) {
    throw Error(
        fmt::format("{}, line {}: {} tokens, expected at most 2^30", name_, number, document.size));
  }
  documents_.push_back(document);
}

std::unique_ptr<Dataset> make_sft_dataset(std::shared_ptr<const SftCorpus> corpus,
                                          std::int64_t seq_len, std::size_t first,
                                          std::size_t count) {
  return std::make_unique<SftDataset>(std::move(corpus), seq_len, first, count);
}

namespace {

constexpr std::string_view kBegin = "<|im_start|>", kEnd = "<|im_end|>\n";

/// What users of TRL call the response.
constexpr std::string_view kCompletion = "completion";

bool is_list(const JsonReader& object, std::string_view key) {
  return object.raw()[std::string(key)].is_array();
}

/// A content that is a list of {"type": "text", "text": ...}, as of models that also see.
bool is_list_of_parts(const JsonReader& message) {
  const nlohmann::json& content = message.raw()["content"];
  return content.is_array() && !content.empty() && content.front().is_object();
}

/// A conversation in place of a text.
bool is_list_of_messages(const JsonReader& object, std::string_view key) {
  const nlohmann::json& value = object.raw()[std::string(key)];
  return value.is_array() && !value.empty() && value.front().is_object();
}

std::string text_of_parts(const JsonReader& message) {
  std::string text;
  for (const JsonReader& part : message.require_array("content")) {
    part.require_choice("type", {"text"});
    text += part.require<std::string>("text");
  }
  return text;
}

}  // namespace

void SftLine::append_text(const JsonReader& object, std::string_view key, std::string_view text,
                          bool counts) {
  if (vocab_ < 256 || (vocab_ > kMostByteVocabulary && !bytes_)) {
    object.fail(key, fmt::format("a list of token ids: the bytes of a text are no tokens of the "
                                 "model's vocabulary of {}",
                                 vocab_));
  }
  for (const char c : text) {
    tokens_.push_back(static_cast<unsigned char>(c));
    counts_.push_back(counts);
  }
}

void SftLine::append(const JsonReader& object, std::string_view key, bool counts) {
  if (!object.has(key)) object.fail(key, "a text or a list of token ids");
  if (is_list_of_messages(object, key)) {
    append_messages(object.require_array(key), counts);
    return;
  }
  if (!is_list(object, key)) {
    append_text(object, key, object.require<std::string>(key), counts);
    return;
  }
  for (const JsonReader& element : object.require_array(key)) {
    tokens_.push_back(static_cast<std::int32_t>(
        element.value<std::int64_t>(between<std::int64_t>(0, vocab_ - 1))));
    counts_.push_back(counts);
  }
}

void SftLine::append_message(const JsonReader& message, bool may_count) {
  if (!message.is_object()) message.fail("an object with role and content");
  const std::string role = message.require<std::string>("role");
  const bool counts = may_count && role == "assistant";
  const bool parts = message.has("content") && is_list_of_parts(message);
  if (message.has("content") && !parts && is_list(message, "content")) {
    append(message, "content", counts);
    return;
  }
  const std::string text = parts ? text_of_parts(message) : message.require<std::string>("content");
  append_text(message, "role", fmt::format("{}{}\n", kBegin, role), false);
  append_text(message, "content", text, counts);
  // That the assistant stops is what it has to learn, too.
  append_text(message, "content", kEnd, counts);
}

void SftLine::append_messages(const std::vector<JsonReader>& messages, bool may_count) {
  for (const JsonReader& message : messages) append_message(message, may_count);
}

bool SftLine::read(const JsonReader& object) {
  if (!object.is_object()) object.fail("an object with prompt and response, messages, or text");
  const std::size_t first = tokens_.size();
  if (object.has("messages")) {
    append_messages(object.require_array("messages"), true);
    if (tokens_.size() == first) object.fail("messages", "at least one message with a token");
    return false;
  }
  if (object.has("text") && !object.has("prompt")) {
    append(object, "text", true);
    if (tokens_.size() == first) object.fail("text", "at least one token");
    return true;
  }
  if (!object.has("prompt")) {
    object.fail("prompt", "prompt and response, or messages, or text: each a text or token ids");
  }
  if (object.has("response") && object.has(kCompletion)) {
    object.fail(kCompletion, "no such key beside response, which means the same");
  }
  const std::string_view response = object.has(kCompletion) ? kCompletion : "response";
  append(object, "prompt", false);
  const std::size_t prompt = tokens_.size();
  append(object, response, true);
  if (tokens_.size() == prompt) object.fail(response, "at least one token");
  return false;
}

bool holds_text(std::string_view line) {
  const nlohmann::json value = parse_json(line, false);
  if (!value.is_object()) return false;  // reading it says why it is wrong
  const auto is_ids = [](const nlohmann::json& of) {
    return of.is_array() && (of.empty() || of.front().is_number());
  };
  const nlohmann::json none;
  const auto at = [&none](const nlohmann::json& of, const char* key) -> const nlohmann::json& {
    return of.is_object() && of.contains(key) ? of[key] : none;
  };
  const nlohmann::json& messages = at(value, "messages");
  if (messages.is_array() && !messages.empty()) return !is_ids(at(messages.front(), "content"));
  return !is_ids(at(value, value.contains("prompt") ? "prompt" : "text"));
}

}  // namespace shardwright::exec
