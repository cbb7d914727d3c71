// SPDX-License-Identifier: Apache-2.0
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
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "sim/core/base/json_file.h"

namespace shardwright::exec {

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
