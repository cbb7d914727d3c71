// SPDX-License-Identifier: Apache-2.0
// This project's token files: like llm.c's, with 64-bit counts, the vocabulary they were made for,
// and checksums.
//
// Little-endian, without padding:
//   0   8  "SHWTOKEN"
//   8   4  version, 1 or 2
//   12  4  bytes of a token: 1, 2 or 4
//   16  8  vocabulary: every token is below it
//   24  8  tokens
//   32  8  tokens of a block, the last one may have fewer
//   40  4  CRC-32 of the block table
//   44  4  CRC-32 of bytes 0 to 43
// and where the version is 2, which knows documents and what of them is trained:
//   48  8  documents
//   56  4  1 where there is a mask, else 0
//   60  4  CRC-32 of both tables
//   64  32 SHA-256 of the tokenizer's files, zero where they are not known
//   96  32 of its chat template
//   128 32 of the converter's options
//   160 4  CRC-32 of bytes 48 to 159, then 4 of zero
//   168    8 for each document: TokenSource::documents
//          the mask: TokenSource::mask
// Then block table: the CRC-32 of each block's bytes; then the tokens.
// A block is checked when it is read for the first time, so that a corpus of any size opens at
// once. shardwright.tokens (cli/python/shardwright/tokens.py) makes such files of texts and chats.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace shardwright::exec {

// The tokens of a corpus, in order, wherever they come from: bytes of a text, llm.c's .bin files
// (v1: 16 bits, v7: 32 bits), this project's token files, or made up.
//
// Files are mapped, not read. Nothing is trusted: a header that promises more than the file holds,
// another version or a token that the vocabulary lacks is an Error that names the file and the
// place.

class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual std::int64_t size() const = 0;
  /// Tokens [first, first + out.size()), which must lie within size(). Threads may read at once.
  virtual void read(std::int64_t first, std::span<std::int32_t> out) const = 0;
  /// "text.txt, 221,898 bytes of text".
  virtual std::string describe() const = 0;
  /// The same for the same corpus: a resumed run asks whether its data are still those.
  virtual std::uint32_t fingerprint() const = 0;
  /// Where documents end, ascending; with kGoesOn where the next sequence has what this one has no
  /// room for. Empty: nobody knows.
  virtual std::span<const std::uint64_t> documents() const { return {}; }
  /// A bit a token, the lowest of a byte first: whether the loss asks for it. Empty: for all.
  virtual std::span<const std::byte> mask() const { return {}; }
  /// SHA-256 of the files of the tokenizer that made them. Empty: nobody knows.
  virtual std::span<const std::byte> tokenizer() const { return {}; }
  /// SHA-256 of its chat template, by which conversations were set. Empty: nobody knows.
  virtual std::span<const std::byte> chat_template() const { return {}; }
};

inline constexpr std::uint64_t kGoesOn = std::uint64_t{1} << 63;

/// Models made for bytes have 256 tokens and perhaps some that mark; another's tokens are no bytes.
inline constexpr std::int64_t kMostByteVocabulary = 512;

/// Every byte is a token.
std::unique_ptr<TokenSource> open_text(const std::filesystem::path& path, std::int64_t vocab,
                                       bool asked = false);
/// Reads all tokens once, by all processors. Throws the Error of the first that is wrong.
void check_tokens(const TokenSource& source);
/// llm.c's format of either version.
std::unique_ptr<TokenSource> open_llmc_tokens(const std::filesystem::path& path,
                                              std::int64_t vocab);
/// Random tokens, of which every second follows from the one before it, so that a model can learn
/// something: half of them cost ln(vocab) nats and half nothing.
std::unique_ptr<TokenSource> synthetic_tokens(std::uint64_t seed, std::int64_t vocab);

/// Whether the file begins like one of llm.c's.
bool is_llmc_file(std::span<const std::byte> bytes);

/// Throws Error when the file is no such file, is damaged, or has a larger vocabulary than the
/// model.
std::unique_ptr<TokenSource> open_token_file(const std::filesystem::path& path, std::int64_t vocab);

bool is_token_file(std::span<const std::byte> bytes);

/// Writes tokens, each in [0, vocab), in as few bytes each as the vocabulary allows: version 1.
void write_token_file(const std::filesystem::path& path, std::span<const std::int32_t> tokens,
                      std::int64_t vocab, std::int64_t block_tokens = std::int64_t{1} << 18);

}  // namespace shardwright::exec
