#include "server/api/http/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api/http/openapi.h"
#include "server/api/http/routes.h"
#include "statcollect/v1/query.pb.h"

namespace statcollect::api {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Refusal(const std::string& query) {
  v1::DiffRequest request;
  const Status status = FillFromQuery(query, request);
  EXPECT_EQ(status.code(), Code::kInvalidArgument) << query;
  return status.message();
}

TEST(HttpRequest, FillsEveryTypeOfFieldFromParameters) {
  v1::DiffRequest request;
  const Status status = FillFromQuery(
      "run_a=base&run_b=o%72t&tolerance=1e-3&exact=false&all&ranks=0,1&ranks=4&kinds=output,grad_"
      "output&top="
      "7&steps=0-9%2C20+",
      request);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(request.run_a(), "base");
  EXPECT_EQ(request.run_b(), "ort");
  EXPECT_EQ(request.tolerance(), 1e-3);
  EXPECT_FALSE(request.exact());
  EXPECT_TRUE(request.all());
  EXPECT_THAT(request.ranks(), ElementsAre(0, 1, 4));
  EXPECT_THAT(request.kinds(), ElementsAre(v1::KIND_OUTPUT, v1::KIND_GRAD_OUTPUT));
  EXPECT_EQ(request.top(), 7u);
  EXPECT_EQ(request.steps(), "0-9,20 ");
}

TEST(HttpRequest, EmptyListsAndPartsAreNothing) {
  v1::DiffRequest request;
  ASSERT_TRUE(FillFromQuery("&&run_a=x&ranks=&", request).ok());
  EXPECT_EQ(request.ranks_size(), 0);
  EXPECT_FALSE(request.has_tolerance());
}

TEST(HttpRequest, EncodedCommasSeparateNumbersAndNamesToo) {
  v1::DiffRequest request;
  ASSERT_TRUE(FillFromQuery("ranks=0%2C1&kinds=output%2Cweight", request).ok());
  EXPECT_THAT(request.ranks(), ElementsAre(0, 1));
  EXPECT_THAT(request.kinds(), ElementsAre(v1::KIND_OUTPUT, v1::KIND_WEIGHT));
}

TEST(HttpRequest, SaysWhatIsWrongAndWhatThereIs) {
  EXPECT_THAT(Refusal("rum_a=x"),
              AllOf(HasSubstr("no parameter 'rum_a'"), HasSubstr("run_a, run_b, tolerance")));
  EXPECT_THAT(Refusal("kinds=outputs"), AllOf(HasSubstr("'outputs'"), HasSubstr("grad_output"),
                                              HasSubstr("(did you mean 'output'?)")));
  EXPECT_THAT(Refusal("kinds=1"), HasSubstr("expected output")) << "numbers are no names";
  EXPECT_THAT(Refusal("ranks=-1"), HasSubstr("0..4294967295"));
  EXPECT_THAT(Refusal("ranks=0,,1"), HasSubstr("''"));
  EXPECT_THAT(Refusal("ranks=99999999999"), HasSubstr("parameter 'ranks'"));
  EXPECT_THAT(Refusal("top=1e3"), HasSubstr("whole number"));
  EXPECT_THAT(Refusal("tolerance=much"), HasSubstr("found 'much'; expected a number"));
  EXPECT_THAT(Refusal("all=maybe"), HasSubstr("true or false"));
  EXPECT_THAT(Refusal("run_a=a&run_a=b"), HasSubstr("twice"));
  EXPECT_THAT(Refusal("run_a=%4"), HasSubstr("percent-encoding"));
  EXPECT_THAT(Refusal("run_a=%ff%fe"), HasSubstr("UTF-8"));
  EXPECT_THAT(Refusal("%1b[31m=1"), ::testing::Not(HasSubstr("\x1b")));
}

TEST(HttpRequest, ReadsABodyOfJson) {
  v1::DiffRequest request;
  const Status status =
      FillFromJson(R"({"run_a":"a,b","tolerance":0.5,"all":true,"ranks":[0,1],"kinds":["output"],)"
                   R"("top":"3","steps":null})",
                   request);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(request.run_a(), "a,b");
  EXPECT_EQ(request.tolerance(), 0.5);
  EXPECT_TRUE(request.all());
  EXPECT_THAT(request.ranks(), ElementsAre(0, 1));
  EXPECT_EQ(request.top(), 3u);
  EXPECT_TRUE(FillFromJson("", request).ok());
}

TEST(HttpRequest, RefusesBodiesThatAreNoRequests) {
  v1::DiffRequest request;
  for (const std::string& body :
       {std::string("{"), std::string("[]"), std::string("7"), std::string("{\"run_a\":7}"),
        std::string("{\"ranks\":0}"), std::string("{\"ranks\":[[0]]}"),
        std::string("{\"ranks\":[0.5]}"), std::string("{\"all\":{}}"),
        std::string("{\"run\":\"a\"}"), std::string("\xff"), std::string(100'000, '['),
        "{\"run_a\":" + std::string(100'000, '[')}) {
    EXPECT_EQ(FillFromJson(body, request).code(), Code::kInvalidArgument) << body.substr(0, 40);
  }
}

TEST(HttpRoutes, EveryQueryHasOneUnderTheNameOfItsCommand) {
  const auto routes = MakeHttpRoutes();
  const auto& service = *v1::DiffRequest::descriptor()->file()->FindServiceByName("Query");
  for (int i = 0; i < service.method_count(); ++i) {
    const auto has = [&](const auto& entry) { return entry.second.method == service.method(i); };
    const bool endless = service.method(i)->name() == "FollowEvents";
    EXPECT_EQ(std::count_if(routes.begin(), routes.end(), has), endless ? 0 : 1)
        << service.method(i)->name();
  }
  for (const char* name :
       {"runs", "show", "diff", "series", "scalars", "events", "top", "config", "ranks", "status"})
    EXPECT_TRUE(routes.contains(name)) << name;
  EXPECT_EQ(routes.at("diff").answer, HttpRoute::Answer::kReport);
  EXPECT_EQ(routes.at("diff").answer_type().name(), "DiffReport");
  EXPECT_EQ(routes.at("records").answer, HttpRoute::Answer::kLines);
  EXPECT_EQ(routes.at("runs").answer, HttpRoute::Answer::kMessage);
  EXPECT_EQ(routes.at("live").answer, HttpRoute::Answer::kEvents);
  EXPECT_EQ(routes.at("heatmap").answer, HttpRoute::Answer::kBytes);
  EXPECT_TRUE(routes.at("rm").changes && routes.at("keep").changes);
  EXPECT_EQ(routes.at("diff").grpc_path(), "/statcollect.v1.Query/Diff");
}

TEST(OpenApi, DescribesEveryRouteWithTheProtosComments) {
  const auto routes = MakeHttpRoutes();
  const auto described = MakeOpenApi(routes);
  EXPECT_EQ(described["openapi"], "3.1.0");
  for (const auto& [name, route] : routes) {
    const auto& path = described["paths"]["/api/v1/" + name];
    EXPECT_TRUE(path.contains("post")) << name;
    EXPECT_EQ(path.contains("get"), !route.changes) << name;
  }
  const auto& diff = described["paths"]["/api/v1/diff"]["get"];
  EXPECT_EQ(diff["description"],
            "The verdict on two runs: where they differ first, why, and how far it spread.")
      << "nothing about the gRPC call";
  EXPECT_EQ(diff["parameters"][0]["name"], "run_a");
  EXPECT_EQ(diff["responses"]["200"]["content"]["application/json"]["schema"]["$ref"],
            "#/components/schemas/DiffReport");
  const auto& top = described["components"]["schemas"]["GetTopResponse"];
  EXPECT_THAT(top["properties"]["considered"]["description"], HasSubstr("that have this number"));
  EXPECT_THAT(top["required"], ::testing::Contains("records"));
}

TEST(OpenApi, DescribesEveryCallInWordsOfHttp) {
  for (const auto& [path, verbs] : MakeOpenApi(MakeHttpRoutes())["paths"].items()) {
    const std::string text = verbs["post"].value("description", "");
    EXPECT_NE(text, "") << path;
    EXPECT_THAT(text, ::testing::Not(::testing::AnyOf(HasSubstr("gRPC"), HasSubstr("progress"),
                                                      HasSubstr("tream"))))
        << path;
  }
}

}  // namespace
}  // namespace statcollect::api
