// An Android library: Kotlin, and libt2r_jni.so for each processor. Not run. ONNX Runtime's headers and library come from
// its Android package (an .aar is a zip), unpacked in -Ponnxruntime=FOLDER: FOLDER/headers, FOLDER/jni/ABI.
plugins {
    id("com.android.library") version "8.7.0"
    id("org.jetbrains.kotlin.android") version "2.1.0"
}

val onnxruntime: String by project

android {
    namespace = "t2r"
    compileSdk = 35
    defaultConfig {
        minSdk = 24
        consumerProguardFiles("consumer-rules.pro")
        ndk { abiFilters += listOf("arm64-v8a", "x86_64") }
        externalNativeBuild {
            cmake { arguments += "-DONNXRUNTIME=$onnxruntime" }
        }
    }
    externalNativeBuild {
        cmake { path = file("src/main/cpp/CMakeLists.txt") }
    }
    sourceSets["main"].jniLibs.srcDir("$onnxruntime/jni")
}
