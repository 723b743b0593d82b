// The table of scopes: it has every method, and docs/reference-security.md shows it.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "server/access/scopes.h"
#include "server/api/http/pages.h"
#include "server/api/http/routes.h"
#include "statcollect/v1/admin.pb.h"
#include "statcollect/v1/ingest.pb.h"
#include "statcollect/v1/login.pb.h"
#include "statcollect/v1/query.pb.h"
#include "statcollect/v1/transfer.pb.h"
#include "tests/server/access/security_page.h"

namespace statcollect::access {
namespace {

std::set<std::string> GrpcMethods() {
  std::set<std::string> methods;
  for (const auto* file :
       {v1::AgentMessage::descriptor()->file(), v1::ListRunsRequest::descriptor()->file(),
        v1::GetStatusRequest::descriptor()->file(), v1::CreateLinkRequest::descriptor()->file(),
        v1::DescribeStoreRequest::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      for (int m = 0; m < file->service(s)->method_count(); ++m)
        methods.insert("/" + file->service(s)->full_name() + "/" +
                       file->service(s)->method(m)->name());
    }
  }
  return methods;
}

// One line for each kind of rule, in the order of their first methods: "`Query/Diff`
// `/api/v1/diff`, ...".
std::string TableText() {
  std::map<std::string, std::string> http;  // by gRPC method
  for (const auto& [name, route] : api::MakeHttpRoutes())
    http[route.grpc_path()] = std::string(api::kHttpPrefix) + name;
  std::vector<std::pair<std::string, std::string>> lines;  // the rule, and its methods
  for (const MethodRule& rule : MethodRules()) {
    const std::string method(rule.method);
    const bool grpc = method.starts_with("/statcollect.v1.");
    const std::string path = grpc ? http[method] : method;
    const std::string kind =
        (rule.scope ? "`" + std::string(ScopeName(*rule.scope)) + "`" : "none needed") +
        (rule.all_projects ? ", for all projects" : "") + " | " +
        (rule.audited ? "always"
         : rule.scope ? "if refused"
                      : "") +
        " |";
    const std::string names = (grpc ? "`" + method.substr(16) + "`" : std::string()) +
                              (path.empty() ? "" : std::string(grpc ? " " : "") + "`" + path + "`");
    auto line =
        std::find_if(lines.begin(), lines.end(), [&](const auto& l) { return l.first == kind; });
    if (line == lines.end())
      lines.emplace_back(kind, names);
    else
      line->second += ", " + names;
  }
  std::string text = "| scope | in the audit log | methods |\n|---|---|---|\n";
  for (const auto& [kind, names] : lines) text += "| " + kind + " " + names + " |\n";
  return text;
}

TEST(ScopeTable, HasEveryMethodOfEveryServiceAndNoOther) {
  std::set<std::string> listed;
  for (const MethodRule& rule : MethodRules()) {
    if (rule.method.starts_with("/statcollect.")) {
      EXPECT_TRUE(listed.emplace(rule.method).second) << rule.method;
    }
  }
  EXPECT_EQ(listed, GrpcMethods());
}

TEST(ScopeTable, WhatChangesSomethingIsAuditedAndNeedsMoreThanRead) {
  for (const MethodRule& rule : MethodRules()) {
    if (!rule.scope) continue;
    const bool changes = *rule.scope == Scope::kControl || *rule.scope == Scope::kDelete ||
                         *rule.scope == Scope::kAdmin || *rule.scope == Scope::kCapture;
    EXPECT_EQ(rule.audited, changes) << rule.method;
  }
  for (const auto& [name, route] : api::MakeHttpRoutes()) {
    if (route.changes) {
      EXPECT_NE(FindRule(route.grpc_path())->scope, Scope::kRead) << name;
    }
  }
}

TEST(ScopeTable, IsInTheDocumentation) {
  testing::ExpectInPage(SECURITY_PAGE, "table of scopes", TableText());
}

}  // namespace
}  // namespace statcollect::access
