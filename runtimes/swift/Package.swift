// swift-tools-version:5.9
import PackageDescription

let package = Package(
    name: "T2R",
    products: [.library(name: "T2R", targets: ["T2R"])],
    targets: [
        .systemLibrary(name: "CT2R"),
        .target(name: "T2R", dependencies: ["CT2R"]),
        .executableTarget(name: "story", dependencies: ["T2R"]),
        .executableTarget(name: "conformance", dependencies: ["T2R"]),
        .executableTarget(name: "misuse", dependencies: ["T2R"]),
    ]
)
