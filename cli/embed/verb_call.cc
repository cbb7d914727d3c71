// SPDX-License-Identifier: Apache-2.0
#include "cli/embed/verb_call.h"

#include <cstdio>
#include <cstdlib>

#include "cli/program.h"
#include "cli/streams.h"
#include "cli/verbs/verbs.h"

namespace shardwright::cli {
namespace {

/// A stream into memory (POSIX open_memstream).
class TextStream {
 public:
  TextStream() : stream_(open_memstream(&text_, &bytes_)) {}
  ~TextStream() {
    if (stream_ != nullptr) std::fclose(stream_);
    std::free(text_);
  }
  TextStream(const TextStream&) = delete;
  TextStream& operator=(const TextStream&) = delete;

  std::FILE* stream() const { return stream_; }

  /// What was written; ends the stream.
  std::string take() {
    const bool whole = std::ferror(stream_) == 0 && std::fclose(stream_) == 0;
    stream_ = nullptr;
    if (!whole) throw std::bad_alloc();
    return {text_, bytes_};
  }

 private:
  char* text_ = nullptr;
  std::size_t bytes_ = 0;
  std::FILE* stream_;
};

}  // namespace

int VerbCall::run(const std::vector<std::string>& words) {
  try {
    std::vector<const char*> arguments{"shardwright"};
    for (const std::string& word : words) arguments.push_back(word.c_str());
    const int count = static_cast<int>(arguments.size());
    arguments.push_back(nullptr);
    const bool kept = where_ == Messages::kKept;
    TextStream out, err;
    if (out.stream() == nullptr || err.stream() == nullptr) throw std::bad_alloc();
    int code = 0;
    {
      const BootstrapPeer peer(
          {out.stream(), kept ? err.stream() : stderr, kept ? &wish_ : nullptr});
      code = run_program(count, arguments.data(), make_verbs(), absent_verbs());
    }
    if (!kept) std::fflush(stderr);
    messages_ = err.take();
    results_ = out.take();
    return code;
  } catch (const std::bad_alloc&) {
    results_.clear();
    messages_ = "error: this machine ran out of memory.\n";
    return static_cast<int>(ExitCode::kFailed);
  }
}

int run_as_program(int argc, const char* const* argv) {
  return run_program(argc, argv, make_verbs(), absent_verbs());
}

}  // namespace shardwright::cli
