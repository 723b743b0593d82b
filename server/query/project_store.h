// A store as one project sees it: its runs, by their plain names.
#ifndef STATCOLLECT_SERVER_QUERY_PROJECT_STORE_H_
#define STATCOLLECT_SERVER_QUERY_PROJECT_STORE_H_

#include <optional>
#include <string>
#include <vector>

#include "server/store/forwarding_store.h"

namespace statcollect::query {

// What is found by an attempt's id needs no look at the project: ids come from Attempts. For
// queries, which create and remove no attempts.
class ProjectStore final : public ForwardingStore {
 public:
  // Borrows the store.
  ProjectStore(Store& store, std::string project)
      : ForwardingStore(store), project_(std::move(project)) {}

  Result<std::vector<std::string>> ListRuns() override;
  Result<std::vector<AttemptMeta>> Attempts(const std::string& run) override;
  Result<std::vector<AttemptTally>> Census() override;
  Status KeepRun(const std::string& run, bool keep) override;
  Status PutDocument(const std::string& run, const std::string& name,
                     const std::optional<std::string>& content) override;
  Result<std::optional<std::string>> Document(const std::string& run,
                                              const std::string& name) override;

 private:
  const std::string project_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_PROJECT_STORE_H_
