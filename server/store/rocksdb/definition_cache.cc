#include "server/store/rocksdb/definition_cache.h"

#include <algorithm>

namespace statcollect {
namespace {

// The texts are as long as in the stored form, at most.
std::size_t BytesOf(const std::string& stored, const RankDefinitions& definitions) {
  return 2 * stored.size() + definitions.activations.size() * sizeof(TensorDef) +
         definitions.layouts.size() * sizeof(Layout);
}

}  // namespace

DefinitionCache::Shared DefinitionCache::Find(AttemptId attempt, std::uint32_t rank,
                                              const DefinitionCounts& counts) {
  MutexLock lock(mutex_);
  const auto found = ranks_.find({attempt, rank});
  if (found == ranks_.end() || CountsOf(found->second->definitions) != counts) return nullptr;
  return Use(found->second);
}

DefinitionCache::Shared DefinitionCache::FindStored(AttemptId attempt, std::uint32_t rank,
                                                    std::string_view stored) {
  MutexLock lock(mutex_);
  const auto found = contents_.find(stored);
  if (found == contents_.end()) return nullptr;
  const std::shared_ptr<Content> content = found->second;
  Assign({attempt, rank}, content);
  return Use(content);
}

DefinitionCache::Shared DefinitionCache::Keep(AttemptId attempt, std::uint32_t rank,
                                              std::string stored, RankDefinitions definitions) {
  const auto content = std::make_shared<Content>();
  content->bytes = BytesOf(stored, definitions);
  content->stored = std::move(stored);
  content->definitions = std::move(definitions);
  MutexLock lock(mutex_);
  const auto known = contents_.find(content->stored);  // another thread was first
  if (known != contents_.end()) {
    const std::shared_ptr<Content> first = known->second;
    Assign({attempt, rank}, first);
    return Use(first);
  }
  if (content->bytes <= bytes_max_) {
    MakeRoom(content->bytes);
    contents_.emplace(content->stored, content);
    bytes_ += content->bytes;
    Assign({attempt, rank}, content);
  }
  return Use(content);
}

std::size_t DefinitionCache::bytes() const {
  MutexLock lock(mutex_);
  return bytes_;
}

DefinitionCache::Shared DefinitionCache::Use(const std::shared_ptr<Content>& content) {
  content->used = ++uses_;
  return {content, &content->definitions};
}

void DefinitionCache::Assign(const Rank& rank, const std::shared_ptr<Content>& content) {
  ++content->ranks;
  if (ranks_.size() >= kRanksMax && !ranks_.contains(rank)) {
    for (const auto& [other, of] : std::exchange(ranks_, {})) Release(of);
  }
  std::shared_ptr<Content>& of = ranks_[rank];
  if (of != nullptr) Release(of);
  of = content;
}

// What no rank has is dropped, but not what is about to be assigned: its count is above 0.
void DefinitionCache::Release(const std::shared_ptr<Content>& content) {
  if (--content->ranks > 0) return;
  bytes_ -= content->bytes;
  contents_.erase(content->stored);
}

void DefinitionCache::MakeRoom(std::size_t bytes) {
  while (!contents_.empty() && bytes_ + bytes > bytes_max_) {
    const auto oldest = std::ranges::min_element(
        contents_, [](const auto& x, const auto& y) { return x.second->used < y.second->used; });
    const std::shared_ptr<Content> dropped = oldest->second;
    std::erase_if(ranks_, [&](const auto& entry) { return entry.second == dropped; });
    dropped->ranks = 1;
    Release(dropped);
  }
}

}  // namespace statcollect
