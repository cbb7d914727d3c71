// SPDX-License-Identifier: Apache-2.0
// The settings in a Python module, by shape alone:
//
//   from torchtitan.models.llama3.config_registry import llama3_8b as flavor     module, config
//   def llama3_8b():
//       config = flavor()
//       config.training.seq_len = 4096                  training.seq_len
//       config.activation_checkpoint = FullAC.Config()  activation_checkpoint: FullAC.Config()
//       return Trainer.Config(
//           model_spec=model_registry("8B"),            model_spec: model_registry(8B)
//           training=TrainingConfig(seq_len=4096))      training.seq_len
//
// A name that is assigned to is the whole config where it is only that ("config"); its attributes
// are keys. A call is the value of its key, with its first argument where that is plain, and its
// keyword arguments are keys below it. Everything else (loops, conditions, arithmetic) is passed
// over: what depends on it cannot be read without running it.
#include <fmt/core.h>

#include <cctype>
#include <map>
#include <set>
#include <utility>

#include "cli/config/setting.h"
#include "cli/config/setting_bounds.h"
#include "sim/core/error.h"

namespace shardwright::cli::settings_language {
namespace {

constexpr int kDeepestCall = 64;

enum class Token { kEnd, kNewline, kName, kNumber, kString, kSymbol };

class PythonReader {
 public:
  PythonReader(std::string_view text, const std::string& name) : text_(text), name_(name) {
    next();
  }

  /// By function; "" for what stands outside of one.
  std::vector<std::pair<std::string, Settings>> read() {
    while (token_ != Token::kEnd) statement();
    return std::move(found_);
  }

 private:
  // --- words ---
  bool at_end() const { return at_ >= text_.size(); }
  char here() const { return at_end() ? '\0' : text_[at_]; }

  void next() {
    for (;;) {
      while (!at_end() &&
             (here() == ' ' || here() == '\t' || here() == '\r' || (open_ > 0 && here() == '\n'))) {
        ++at_;
      }
      if (here() == '#') {
        while (!at_end() && here() != '\n') ++at_;
      } else if (here() == '\\' && at_ + 1 < text_.size() && text_[at_ + 1] == '\n') {
        at_ += 2;
      } else {
        break;
      }
    }
    begins_line_ = at_ == 0 || text_[at_ - 1] == '\n';
    word_.clear();
    if (at_end()) {
      token_ = Token::kEnd;
    } else if (here() == '\n') {
      token_ = Token::kNewline;
      ++at_;
    } else if (here() == '"' || here() == '\'') {
      string();
    } else if (std::isdigit(static_cast<unsigned char>(here())) != 0) {
      token_ = Token::kNumber;
      while (!at_end() && (std::isalnum(static_cast<unsigned char>(here())) != 0 || here() == '.' ||
                           here() == '_' ||
                           ((here() == '-' || here() == '+') &&
                            (text_[at_ - 1] == 'e' || text_[at_ - 1] == 'E')))) {
        if (here() != '_') word_ += here();
        ++at_;
      }
    } else if (std::isalpha(static_cast<unsigned char>(here())) != 0 || here() == '_') {
      token_ = Token::kName;
      while (!at_end() && (std::isalnum(static_cast<unsigned char>(here())) != 0 || here() == '_'))
        word_ += text_[at_++];
      // r"..", f"..": a prefix of a string.
      if (word_.size() <= 2 && (here() == '"' || here() == '\'')) string();
    } else {
      token_ = Token::kSymbol;
      word_ = here();
      ++at_;
      if (word_ == "(" || word_ == "[" || word_ == "{") ++open_;
      if ((word_ == ")" || word_ == "]" || word_ == "}") && open_ > 0) --open_;
      if (word_ == "=" && here() == '=') word_ += text_[at_++];
    }
  }

  void string() {
    token_ = Token::kString;
    word_.clear();
    const char quote = here();
    const std::string thrice(3, quote);
    const bool is_long = text_.substr(at_, 3) == thrice;
    at_ += is_long ? 3 : 1;
    while (!at_end()) {
      if (is_long ? text_.substr(at_, 3) == thrice : here() == quote) {
        at_ += is_long ? 3 : 1;
        return;
      }
      if (!is_long && here() == '\n') return;  // unfinished: passed over
      if (here() == '\\' && at_ + 1 < text_.size()) ++at_;
      if (!at_end()) word_ += text_[at_++];
    }
  }

  bool is(const char* symbol) const { return token_ == Token::kSymbol && word_ == symbol; }
  bool ends_statement() const { return token_ == Token::kEnd || token_ == Token::kNewline; }

  // --- sentences ---
  void statement() {
    const bool outside = begins_line_ && token_ != Token::kNewline;
    if (outside) {
      function_.clear();
      variables_.clear();
    }
    if (token_ == Token::kName && word_ == "def") {
      next();
      if (token_ == Token::kName) function_ = word_;
    } else if (token_ == Token::kName && word_ == "from") {
      take_import();
    } else if (token_ == Token::kName && word_ == "return") {
      next();
      if (token_ == Token::kName) static_cast<void>(expression("", 0));
    } else if (token_ == Token::kName) {
      const std::vector<std::string> names = dotted();
      if (is("=")) {
        next();
        std::string key;
        for (std::size_t i = 1; i < names.size(); ++i) key += (i > 1 ? "." : "") + names[i];
        const std::string value = value_of(key, 0);
        if (names.size() == 1 && !value.empty()) variables_[names.front()] = value;
      }
    }
    while (!ends_statement()) next();
    if (token_ == Token::kNewline) next();
  }

  /// "from torchtitan.models.llama3.config_registry import llama3_8b as flavor": whose config it is
  /// that is changed, as the command line of torchtitan says it.
  void take_import() {
    next();
    if (token_ != Token::kName) return;
    const std::vector<std::string> module = dotted();
    if (token_ != Token::kName || word_ != "import") return;
    next();
    if (token_ != Token::kName || module.size() < 2 || module.back() != "config_registry") return;
    keep("module", module[module.size() - 2]);
    keep("config", word_);
  }

  std::vector<std::string> dotted() {
    std::vector<std::string> names{word_};
    next();
    while (is(".")) {
      next();
      if (token_ != Token::kName) break;
      names.push_back(word_);
      next();
    }
    return names;
  }

  /// Keeps a literal, a name or a call under the key; what it calls with goes below. Returns its
  /// text, which is empty where it is something else.
  std::string value_of(const std::string& key, int depth) {
    check_key(key, name_);
    const bool negative = is("-");
    if (negative) next();
    std::string value;
    if (token_ == Token::kNumber || token_ == Token::kString) {
      value = (negative ? "-" : "") + word_;
      next();
    } else if (token_ == Token::kName && !negative) {
      value = expression(key, depth);
      if (const auto known = variables_.find(value); known != variables_.end())
        value = known->second;
      if (value == "True" || value == "False") value = value == "True" ? "true" : "false";
      if (value == "None") value = "null";
    }
    // Part of a longer expression, as in 2 * 4, is no value.
    if (!ends_statement() && !is(",") && !is(")")) return "";
    if (!key.empty() && !value.empty()) keep(key, value);
    return value;
  }

  /// A dotted name, and what it is called with. The text of it: "FullAC.Config()".
  std::string expression(const std::string& key, int depth) {
    if (depth > kDeepestCall) throw Error(fmt::format("{}: calls nest too deeply", name_));
    std::string text;
    for (const std::string& name : dotted()) text += (text.empty() ? "" : ".") + name;
    if (!is("(")) return text;
    next();
    std::string first;
    bool begins = true;
    while (token_ != Token::kEnd && !is(")")) {
      if (token_ == Token::kName) {
        const std::size_t at = at_;
        const int open = open_;
        const std::string word = word_;
        next();
        if (is("=")) {
          next();
          static_cast<void>(value_of(key.empty() ? word : key + "." + word, depth + 1));
        } else {
          at_ = at, open_ = open, token_ = Token::kName, word_ = word;
        }
      } else if (begins && token_ == Token::kString) {
        first = word_;
      }
      begins = false;
      pass_argument();
    }
    if (token_ == Token::kEnd) return text;
    next();
    return text + "(" + first + ")";
  }

  /// To behind the next comma of this call, or its end.
  void pass_argument() {
    int deeper = 0;
    while (token_ != Token::kEnd) {
      if (deeper == 0 && is(")")) return;
      if (is("(") || is("[") || is("{")) ++deeper;
      if (is(")") || is("]") || is("}")) --deeper;
      const bool comma = deeper == 0 && is(",");
      next();
      if (comma) return;
    }
  }

  void keep(const std::string& key, const std::string& value) {
    if (found_.empty() || found_.back().first != function_) found_.push_back({function_, {}});
    add_setting(found_.back().second, key, value, name_);
  }

  std::string_view text_;
  const std::string& name_;
  std::size_t at_ = 0;
  int open_ = 0;
  Token token_ = Token::kEnd;
  std::string word_;
  bool begins_line_ = true;
  std::string function_;
  std::map<std::string, std::string> variables_;  // of the function, by their text
  std::vector<std::pair<std::string, Settings>> found_;
};

}  // namespace

Settings parse_python(std::string_view text, const std::string& name, const std::string& function) {
  const auto found = PythonReader(text, name).read();
  Settings settings;
  std::set<std::string> functions;
  for (const auto& [of, list] : found) {
    if (!of.empty()) functions.insert(of);
    if (!of.empty() && !function.empty() && of != function) continue;
    settings.insert(settings.end(), list.begin(), list.end());
  }
  std::string all;
  for (const std::string& of : functions) all += (all.empty() ? "" : ", ") + of;
  if (!function.empty() && !functions.contains(function)) {
    throw Error(fmt::format("{}: has no function {} that sets anything, expected one of {}", name,
                            function, all.empty() ? "none" : all));
  }
  if (function.empty() && functions.size() > 1) {
    throw Error(
        fmt::format("{}: sets things in several functions, expected one to be named as in "
                    "{}:{} (there are {})",
                    name, name, *functions.begin(), all));
  }
  return settings;
}

}  // namespace shardwright::cli::settings_language
